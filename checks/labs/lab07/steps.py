"""Lab 07, The other direction: the steps of its derivation."""

from checks.show.derive import step

SAMPLE = "(1-fx)*(1-fy)*v00 + fx*(1-fy)*v10 + (1-fx)*fy*v01 + fx*fy*v11"
SLOPE = "(1-fy)*(v10-v00) + fy*(v11-v01)"
SIGN = "Of the four pixels, two gain weight as the point moves right and two lose it. Check the sign of each."

step(
    "07.step_attention",
    question="One point with attention weight `A`, two channels with samples `s0` and `s1`. The loss feels channel 0 by "
    "`g0` and channel 1 by `g1`: it changes by `g0*A*s0 + g1*A*s1`. Its derivative by `A` is …",
    of="g0*A*s0 + g1*A*s1",
    by="A",
    slips={
        "A*(g0*s0 + g1*s1)": "`A` is still there. The expression is linear in `A`: what is its slope?",
        "g0*s0": "That is channel 0. `A` weighs every channel.",
        "g1*s1": "That is channel 1. `A` weighs every channel.",
        "s0 + s1": "How much the loss cares about a channel is missing.",
        "g0 + g1": "That is the derivative if every sample is 1. Where are the samples?",
        "(g0*s0 + g1*s1)/2": "The channels are added, not averaged.",
    },
    then=r"So $\;\partial/\partial A = \sum_d g_d\, s_d$: a dot product over the channels, with no $A$ left in it.",
)
step(
    "07.step_weight",
    question="The pixel to the upper *right* of the point has weight `fx*(1-fy)`. Moving the point right changes `fx`. "
    "The derivative of the weight by `fx` is …",
    of="fx*(1-fy)",
    by="fx",
    slips={
        "fx": "That is what the derivative by `1-fy` would be. Which variable moves?",
        "-fx": "That is the derivative by `fy`. Which variable moves?",
        "-(1-fy)": "Does this pixel gain or lose weight as the point comes nearer?",
        "fy": "Something times `fx` has that something as its slope.",
        "fx*(1-fy)": "That is the weight itself.",
        "1": "That holds on the pixel's own row only. What does `fy` do?",
    },
    then=r"The pixel gains, by as much as the point is near its row. The pixel to its left, with weight $(1-f_x)(1-f_y)$, "
    "loses the same amount: the four weights sum to 1, so their four slopes sum to 0.",
)
step(
    "07.step_slope",
    question=f"`v10` is the pixel to the upper right, `v01` the one to the lower left. The sample is `{SAMPLE}`. Its "
    "derivative by `fx` is …",
    of=SAMPLE,
    by="fx",
    slips={
        "(1-fy)*(v10+v00) + fy*(v11-v01)": SIGN,
        "(1-fy)*(-v10-v00) + fy*(v11-v01)": SIGN,
        "(1-fy)*(v10-v00) + fy*(v11+v01)": SIGN,
        "(1-fy)*(v10-v00) + fy*(-v11-v01)": SIGN,
        f"-({SLOPE})": "All four signs are turned round. Which pixels gain as the point moves right?",
        "(1-fx)*(v10-v00) + fx*(v11-v01)": "Right pixels minus left ones, good. Which row counts for how much depends on "
        "where the point is between the *rows*.",
        "(1-fx)*(v01-v00) + fx*(v11-v10)": "That is the slope as the point moves down. Here it moves right.",
        "v10 - v00": "That is the upper row alone. The point may lie between two rows.",
        "v10 - v00 + v11 - v01": "Both rows count in full. How much does each count?",
        "fy*(v10-v00) + (1-fy)*(v11-v01)": "At `fy = 0` the point is on the upper row. Which row does your line read?",
        SAMPLE: "That is the sample itself.",
    },
    then=r"Right minus left, interpolated between the rows. There is no $f_x$ in it: **between two pixels the slope along "
    "$x$ does not change.** Down works the same way, with rows and columns exchanged. From here on `sx` is this slope.",
)
step(
    "07.step_size",
    question="`loc` is the location, from 0 to 1 across an image of `H` rows and `W` columns, and `x0` the pixel to the "
    "left. `fx` is `loc*W - 1/2 - x0`. As long as the point does not leave its cell, the derivative by `loc` is …",
    of="loc*W - 1/2 - x0",
    by="loc",
    names=["H"],
    slips={
        "1": "`loc` runs from 0 to 1 across the whole image. How many pixels is that?",
        "H": "Across, the image measures `W`.",
        "W - 1": "From edge to edge. How many pixels fit?",
        "W - 1/2": "The half pixel is subtracted, and stays where it is while the point moves.",
        "W/2": "That is for coordinates from -1 to 1, as `grid_sample` has them.",
        "1/W": "The other way round: a small step in `loc` is a large one in pixels.",
        "loc*W": "That is where the point is. How fast does it go?",
    },
    then="The **size factor**. The same step in `loc` moves the point further on a finer level, so its gradient is larger "
    "there: by `W` across, and by `H` down.",
)
step(
    "07.step_location",
    question="Everything in a row, for one channel. The loss changes by `g*A` times the sample, and the sample has slope "
    "`sx` (your line above). The derivative of the loss by `loc` is …",
    of=f"g*A*({SAMPLE.replace('fx', '(loc*W - 1/2 - x0)')})",
    by="loc",
    names=["H"],
    also={"sx": SLOPE},
    slips={
        "g*A*sx": "That is per pixel. `loc` is not in pixels.",
        "g*A*H*sx": "Across, the image measures `W`.",
        "g*W*sx": "The sample is multiplied by something before the loss feels it.",
        "A*W*sx": "How much the loss cares is missing.",
        "W*sx": "That is the derivative of the sample. What happens to it before the loss feels it?",
        "g*A*W": "How much the sample itself changes is missing.",
        "g*A*sx/W": "A small step in `loc` is a large one in pixels.",
    },
    then=r"So $\;\partial/\partial \text{loc}_x = W \, A \sum_d g_d\, s_{x,d}$ and "
    r"$\;\partial/\partial \text{loc}_y = H \, A \sum_d g_d\, s_{y,d}$. Unlike the gradient of $A$, both keep their $A$.",
)
step(
    "07.step_value",
    question="Two points of different queries read the same pixel `v`, with corner weights `w1` and `w2` and attention "
    "`A1` and `A2`. The loss changes by `g1*A1*w1*v + g2*A2*w2*v`. Its derivative by `v` is …",
    of="g1*A1*w1*v + g2*A2*w2*v",
    by="v",
    slips={
        "g2*A2*w2": "That is what the second point says. The first one also read this pixel.",
        "g1*A1*w1": "That is what the first point says. The second one also read this pixel.",
        "g1*w1 + g2*w2": "The attention weights are missing: here they belong.",
        "A1*w1 + A2*w2": "How much the loss cares is missing.",
        "g1*A1 + g2*A2": "How much of the pixel each point read is missing.",
        "(g1*A1*w1 + g2*A2*w2)/2": "A pixel that two points read matters to both: nothing is averaged.",
        "(g1*A1*w1 + g2*A2*w2)*v": "`v` is still there. The expression is linear in `v`.",
        "(g1 + g2)*(A1*w1 + A2*w2)": "Each query's own `g` goes with its own weights.",
    },
    then=r"Everybody who read the pixel writes to it, and what they write **adds up**. Reading four pixels became "
    "writing four pixels, with the same weights.",
)
