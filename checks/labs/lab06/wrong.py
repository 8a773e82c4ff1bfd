"""Lab 06, Make it fast: the wrong answers that are known."""

from statistics import fmean, median

from checks.core.exercise import Mistake
from checks.labs.forward_cases import NOT_THERE, told
from solutions import lab06 as solution


def timer(
    *, compiled=True, graph=True, wait="end", average=median, copies=20, divide=True, warm_up=20_000.0, flush="each",
    clocked="event", cold=True, swap=False, repeats=101,
):  # fmt: skip
    """A `device_time`, right unless told otherwise.

    Args:
        compiled: launch once before anything is timed; graph: many launches in one, else one by one.
        wait: synchronize at the "end", after "each" launch, or "never"; clocked: by "event", or by the "host".
        average: of the repeats; copies: launches in a graph; divide: by them; warm_up: microseconds of it.
        flush: before "each" launch, "once", "never", "inside" what is timed, or "both" for the warm time as well.
        cold: time it at all; swap: return cold first.
    """

    def device_time(fn, clock):
        if compiled:
            fn()
        many = clock.graph(fn, copies) if graph else fn
        begin = clock.now()
        while clock.now() - begin < warm_up:
            many()

        def sample(launch, before, inside):
            if clocked == "host":
                if wait == "each":
                    times = []
                    for _ in range(repeats):
                        before()
                        if flush != "never" and before is clock.flush:
                            clock.synchronize()
                        start = clock.now()
                        launch()
                        clock.synchronize()
                        times.append(clock.now() - start)
                    return average(times)
                clock.synchronize()
                start = clock.now()
                for _ in range(repeats):
                    before()
                    launch()
                if wait == "end":
                    clock.synchronize()
                return (clock.now() - start) / repeats
            pairs = []
            for _ in range(repeats):
                before()
                start = clock.record()
                inside()
                launch()
                pairs.append((start, clock.record()))
                if wait == "each":
                    clock.synchronize()
            if wait == "end":
                clock.synchronize()
            return average([end.time - start.time for start, end in pairs])

        nothing = lambda: None  # noqa: E731
        if flush == "both":
            warm = sample(fn, clock.flush, nothing)
        else:
            warm = sample(many, nothing, nothing) / (copies if graph and divide else 1)
        if not cold:
            return warm, warm
        if flush == "once":
            clock.flush()
        before = clock.flush if flush in ("each", "both") else nothing
        late = sample(fn, before, clock.flush if flush == "inside" else nothing)
        return (late, warm) if swap else (warm, late)

    return device_time


def _fresh_mean(fn, clock):
    """The first call counted: the mean of a hundred calls, from the very first."""
    start = clock.now()
    for _ in range(100):
        fn()
    clock.synchronize()
    warm = (clock.now() - start) / 100
    return warm, warm


MSDA_FWD_FAST_KERNEL: list[Mistake] = [
    Mistake(
        "when only the first BLOCK_P points are taken",
        {"each_p0": "for p0 in range(0, BLOCK_P, BLOCK_P):"},
        "There can be more points than BLOCK_P. What comes after the first block?",
    ),
    Mistake(
        "when the points that fill no block are left out",
        {"mask_p": "mask_p = mask_q[:, None] & (p < L * K // BLOCK_P * BLOCK_P)[None, :]"},
        "12 points are one block of 8 and half of another.",
    ),
    Mistake(
        "when lanes past the last point are not masked",
        {"mask_p": "mask_p = mask_q[:, None] & (p == p)[None, :]"},
        "After a query's last point come the first points of its next head. Who asked for those?",
    ),
    Mistake(
        "when the level of a lane past the last point is looked up",
        {"level": "level = p // K"},
        "Lane 13 of 12 points has level 3 of 3, in a table of three. The load of the table needs a mask, or a level "
        "that exists.",
    ),
    Mistake(
        "when each block of points replaces the sum so far",
        {
            "y": """
                @
                acc = acc * 0
            """
        },
        "A second block of points adds to what the first one found.",
    ),
    Mistake(
        "when levels and points are swapped",
        {"level": "level = p % L"},
        "Points are counted through (L, K): of which axis is the next point, mostly?",
    ),
    Mistake(
        "when every block of points begins at level 0",
        {"level": "level = tl.minimum((p - p0) // K, L - 1)"},
        "Does your level come from the lane's number, or from the point's?",
    ),
    Mistake(
        "when all points are looked up on the level of the block's first",
        {"level": "level = tl.minimum((p0 + p * 0) // K, L - 1)"},
        "A block of 8 points covers several levels, each with an H, a W and a start of its own.",
    ),
    Mistake(
        "when all of x is taken to lie before all of y",
        {"pair": "pair = point[:, :, None] + L * K * tl.arange(0, 2)[None, None, :]"},
        "The last axis of loc has length 2. Which two numbers are neighbours?",
    ),
    Mistake(
        "when the load of the locations has no mask",
        {"x": "x, y = tl.split(tl.load(loc_ptr + pair).to(tl.float32))"},
        NOT_THERE,
    ),
    Mistake(
        "when value is masked by point, but not by pixel",
        {"v": "v = tl.load(v_ptr, mask=mask_p[:, :, None] & mask_d[None, None, :], other=0.0)"},
        "A point that exists can still look at a pixel that does not.",
        only="traffic",
    ),
    Mistake(
        "when the parameters are loaded one point at a time",
        {"each_p0": "for p0 in range(0, L * K):", "p": "p = p0 + tl.arange(0, 1)"},
        "That is lab 5's loop. A query's points lie side by side: loaded one by one, each load fetches the sector of its "
        "neighbours again. How many points does one sector hold?",
        only="traffic",
    ),
    Mistake(
        "when every number of a query's parameters is a load of its own",
        {
            "a": """
                a = tl.zeros([BLOCK_Q, BLOCK_P], tl.float32)
                for n in range(BLOCK_P):
                    one = tl.load(attn_ptr + row * (L * K) + p0 + n, mask=mask_q & (p0 + n < L * K), other=0.0)
                    a += tl.where((p == p0 + n)[None, :], one.to(tl.float32)[:, None], 0.0)
                a = a.to(tl.float32)
                x = tl.zeros([BLOCK_Q, BLOCK_P], tl.float32)
                y = tl.zeros([BLOCK_Q, BLOCK_P], tl.float32)
                for n in range(BLOCK_P):
                    here = loc_ptr + 2 * (row * (L * K) + p0 + n)
                    there = mask_q & (p0 + n < L * K)
                    x += tl.where((p == p0 + n)[None, :], tl.load(here, mask=there, other=0.0).to(tl.float32)[:, None], 0.0)
                    y += tl.where((p == p0 + n)[None, :], tl.load(here + 1, mask=there, other=0.0).to(tl.float32)[:, None], 0.0)
            """,
            "pair": "",
            "x": "",
        },
        "A load of a block (BLOCK_Q, BLOCK_P), whose last axis lies along memory, needs no loop.",
        only="traffic",
    ),
    Mistake(
        "when the parameters are loaded again for each corner",
        {
            "xi": """
                a = tl.load(attn_ptr + point, mask=mask_p, other=0.0, volatile=True).to(tl.float32)
                @
                x, y = tl.split(tl.load(loc_ptr + pair, mask=mask_p[:, :, None], other=0.0, volatile=True).to(tl.float32))
                x = x * W - 0.5
                y = y * H - 0.5
            """
        },
        "Locations and weights do not depend on the corner. Load them once, before the corners.",
        only="traffic",
    ),
    Mistake(
        "when a row of channels is read in pieces",
        {
            "v": """
                v = tl.zeros([BLOCK_Q, BLOCK_P, BLOCK_D], tl.float32)
                for d in range(0, D, 4):
                    piece = inside[:, :, None] & mask_d[None, None, :] & (offs_d // 4 * 4 == d)[None, None, :]
                    v += tl.load(v_ptr, mask=piece, other=0.0).to(tl.float32)
                acc += tl.sum(weight[:, :, None] * v, axis=1)
            """,
            "acc_2": "",
        },
        "A piece of 4 numbers of 2 bytes is a quarter of a sector, and the other three are fetched with it, each time. Why cut a row?",
        only="traffic",
    ),
    Mistake(
        "when each lane reads a single channel",
        {"offs_d": "offs_d = (tl.arange(0, BLOCK_D) + tl.program_id(1)) % BLOCK_D"},
        "The rows you read lie in one piece, but the compiler cannot see it: its lanes take one number each. Are your "
        "channel numbers a plain `tl.arange`?",
        only="traffic",
    ),
    Mistake(
        "when rows are read for all heads",
        {
            "v": """
                v = tl.zeros([BLOCK_Q, BLOCK_P, BLOCK_D], tl.float32)
                for other in range(M):
                    u = tl.load(v_ptr + (other - m) * D, mask=inside[:, :, None] & mask_d[None, None, :], other=0.0)
                    v += tl.where(other == m, u.to(tl.float32), 0.0)
            """
        },
        "The heads of a pixel lie together, but this program needs one of them.",
        only="traffic",
    ),
    *told(
        value_dtype={
            "acc": "acc = tl.zeros([BLOCK_Q, BLOCK_D], value_ptr.dtype.element_ty)",
            "acc_2": "acc = (acc.to(tl.float32) + tl.sum(weight[:, :, None] * v.to(tl.float32), axis=1)).to(acc.dtype)",
        },
        untested_weight={"weight": "weight = a * (1 - tl.abs(x - xi)) * (1 - tl.abs(y - yj))"},
        x0_for_x1={"xi": "xi = tl.floor(x)"},
        y0_for_y1={"yj": "yj = tl.floor(y)"},
        start_twice={
            "pixel": "pixel = 2 * start + tl.where(inside, yj, 0.0).to(tl.int32) * W + tl.where(inside, xi, 0.0).to(tl.int32)"
        },
        no_start={
            "pixel": "pixel = tl.where(inside, yj, 0.0).to(tl.int32) * W + tl.where(inside, xi, 0.0).to(tl.int32)"
        },
        half_coordinates={
            "x": "x, y = tl.split(tl.load(loc_ptr + pair, mask=mask_p[:, :, None], other=0.0))",
            "x_2": "x = (x * W - 0.5).to(tl.float32)",
            "y": "y = (y * H - 0.5).to(tl.float32)",
        },
        rounded_coordinates={
            "x_2": "x = (x * W - 0.5).to(tl.float16).to(tl.float32)",
            "y": "y = (y * H - 0.5).to(tl.float16).to(tl.float32)",
        },
        y_x={"x": "y, x = tl.split(tl.load(loc_ptr + pair, mask=mask_p[:, :, None], other=0.0).to(tl.float32))"},
        w_h={
            "H": "H = tl.load(shapes_ptr + 2 * level + 1 - 1 + 1).to(tl.int32)[None, :]",
            "W": "W = tl.load(shapes_ptr + 2 * level).to(tl.int32)[None, :]",
        },
        w_for_both={"y": "y = y * W - 0.5"},
        no_half_pixel={"x_2": "x = x * W", "y": "y = y * H"},
        centre_to_centre={"x_2": "x = x * (W - 1)", "y": "y = y * (H - 1)"},
        truncated={
            "xi": "xi = tl.where(x < 0, -tl.floor(-x), tl.floor(x)) + i",
            "yj": "yj = tl.where(y < 0, -tl.floor(-y), tl.floor(y)) + j",
        },
        far_near={"weight": "weight = tl.where(inside, a * tl.abs(x - xi) * tl.abs(y - yj), 0.0)"},
        h_pitch={
            "pixel": "pixel = start + tl.where(inside, yj, 0.0).to(tl.int32) * H + tl.where(inside, xi, 0.0).to(tl.int32)"
        },
        nearest={
            "x_2": "x = tl.minimum(tl.maximum(x * W - 0.5, 0.0), W - 1.0)",
            "y": "y = tl.minimum(tl.maximum(y * H - 0.5, 0.0), H - 1.0)",
        },
        nan_is_0={"x_2": "x = tl.where(x == x, x * W - 0.5, 0.0)", "y": "y = tl.where(y == y, y * H - 0.5, 0.0)"},
        whole_point={
            "inside": "inside = mask_p & (tl.floor(x) >= 0) & (tl.floor(x) < W - 1) & (tl.floor(y) >= 0) & (tl.floor(y) < H - 1)"
        },
        early_integer={
            "xi": "xi = tl.floor(x).to(tl.int32) + i",
            "yj": "yj = tl.floor(y).to(tl.int32) + j",
            "pixel": "pixel = start + tl.where(inside, yj, 0) * W + tl.where(inside, xi, 0)",
        },
        no_attention={"weight": "weight = tl.where(inside, (1 - tl.abs(x - xi)) * (1 - tl.abs(y - yj)), 0.0)"},
        last_corner={"acc_2": "acc = tl.sum(weight[:, :, None] * v.to(tl.float32), axis=1)"},
        mean={
            "store": "tl.store(out_ptr + row[:, None] * D + offs_d[None, :], (acc / (L * K)).to(out_ptr.dtype.element_ty), mask=mask_out)"
        },
        heads_first={"row": "row = (b * M + m) * Q + q"},
        first_head={"head_ptr": "head_ptr = value_ptr + (b * S * M) * D"},
        first_item={"head_ptr": "head_ptr = value_ptr + m.to(tl.int64) * D"},
        rows_of_item_0={"row": "row = q.to(tl.int64) * M + m"},
        head_first_id={"m": "m = tl.program_id(1) // M", "b": "b = (tl.program_id(1) % M).to(tl.int64)"},
        heads_apart={
            "head_ptr": "head_ptr = value_ptr + (b * S * M + m * S) * D",
            "v_ptr": "v_ptr = head_ptr + pixel[:, :, None] * D + offs_d[None, None, :]",
        },
        pixel_pitch_d={"v_ptr": "v_ptr = head_ptr + pixel[:, :, None] * D + offs_d[None, None, :]"},
        block_d={
            "head_ptr": "head_ptr = value_ptr + (b * S * M + m) * BLOCK_D",
            "v_ptr": "v_ptr = head_ptr + pixel[:, :, None] * (M * BLOCK_D) + offs_d[None, None, :]",
            "store": "tl.store(out_ptr + row[:, None] * BLOCK_D + offs_d[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask_out)",
        },
        no_block_q={"q": "q = tl.program_id(0) + tl.arange(0, BLOCK_Q)"},
        full_blocks={"mask_q": "mask_q = q < Q // BLOCK_Q * BLOCK_Q"},
        no_attention_mask={"a": "a = tl.load(attn_ptr + point).to(tl.float32)"},
        no_channel_mask={"v": "v = tl.load(v_ptr, mask=inside[:, :, None], other=0.0)"},
        no_other={"v": "v = tl.load(v_ptr, mask=inside[:, :, None] & mask_d[None, None, :])"},
        no_store_mask={
            "store": "tl.store(out_ptr + row[:, None] * D + offs_d[None, :], acc.to(out_ptr.dtype.element_ty))"
        },
        store_any_query={
            "store": "tl.store(out_ptr + row[:, None] * D + offs_d[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask_d[None, :])"
        },
        store_any_channel={
            "store": "tl.store(out_ptr + row[:, None] * D + offs_d[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask_q[:, None])"
        },
        narrow_batch={"b": "b = (tl.program_id(1) // M)"},
    ),
    Mistake(
        "when each row's x are taken to lie before its y",
        {"pair": "pair = 2 * row[:, None, None] * (L * K) + p[None, :, None] + L * K * tl.arange(0, 2)[None, None, :]"},
        "The last axis of loc has length 2. Which two numbers are neighbours?",
    ),
    Mistake(
        "when the heads are left out of the place of locations and weights",
        {
            "a": """
                point = (b * Q + q)[:, None] * (L * K) + p[None, :]
                @
            """
        },
        "attn is (B, Q, M, L, K): between two queries lie the points of all heads.",
    ),
    Mistake(
        "when the points of a level are taken to be L",
        {
            "level": "level = p // L",
            "H": "H = tl.load(shapes_ptr + 2 * level, mask=p < L * K, other=1).to(tl.int32)[None, :]",
            "W": "W = tl.load(shapes_ptr + 2 * level + 1, mask=p < L * K, other=1).to(tl.int32)[None, :]",
        },
        "A level has K points: how many come before point 0 of level 1?",
    ),
]


LAUNCH_CONFIG: list[Mistake] = [
    Mistake(
        "when all points are taken at once, however many channels there are",
        {"BLOCK_P": "BLOCK_P = triton.next_power_of_2(L * K)"},
        "64 points of 256 channels are 16,384 numbers for each corner. How many registers has a warp?",
    ),
    Mistake(
        "when every program has four warps",
        {"result": "return dict(BLOCK_Q=BLOCK_Q, BLOCK_P=BLOCK_P, BLOCK_D=BLOCK_D, num_warps=4)"},
        "A tile is shared out among all lanes of a program. How many bytes of each corner does a lane of four warps get?",
    ),
    Mistake(
        "when BLOCK_D is D",
        {"BLOCK_D": "BLOCK_D = D"},
        "`tl.arange` needs a power of two. What about 33 channels?",
    ),
    Mistake(
        "when BLOCK_P is L * K",
        {"BLOCK_P": "BLOCK_P = L * K"},
        "`tl.arange` needs a power of two. What about 13 points on 3 levels?",
    ),
    Mistake(
        "when BLOCK_D is cut off at the size of the tile",
        {"BLOCK_D": "BLOCK_D = min(triton.next_power_of_2(D), 256)"},
        "The kernel has no loop over channels: all of them need a lane.",
    ),
    Mistake(
        "when BLOCK_P is 16, however many points there are",
        {"BLOCK_P": "BLOCK_P = 16"},
        "With 4 points, what do the other 12 lanes do?",
    ),
    Mistake(
        "when one point is taken at a time",
        {"BLOCK_P": "BLOCK_P = 1"},
        "That is lab 5's loop. What did its loads of locations and weights use of each sector?",
    ),
    Mistake(
        "when a program has one query, however few points",
        {"BLOCK_Q": "BLOCK_Q = 1"},
        "4 points of 32 channels are 128 numbers. Is that enough for 32 lanes that can load 16 bytes each?",
    ),
    Mistake(
        "when BLOCK_Q is 16, however few queries there are",
        {"BLOCK_Q": "BLOCK_Q = 16", "loop": "while False:"},
        "How many programs does a decoder of 100 queries and 8 heads have then, on 132 multiprocessors?",
    ),
    Mistake(
        "when few queries are packed as tightly as many",
        {"loop": "while False:"},
        "100 queries, two to a program, 8 heads: how many programs are there for 132 multiprocessors?",
    ),
    Mistake(
        "when the same number of elements is taken in 16 bits as in 32, for twice the lanes",
        {
            "tile": "tile = 4 * 32",
            "result": "return dict(BLOCK_Q=BLOCK_Q, BLOCK_P=BLOCK_P, BLOCK_D=BLOCK_D, num_warps=1)",
        },
        "A lane loads 16 bytes at once. How many numbers is that in float16?",
    ),
]


DEVICE_TIME: list[Mistake] = [
    Mistake(
        "when one time is given twice",
        timer(cold=False),
        "Two figures are asked for. What must happen before a launch, so that it finds nothing of its own in L2?",
    ),
    Mistake(
        "when a single launch is timed",
        timer(repeats=1),
        "Now and then a launch is held up. With one figure, how would you know that it was not yours?",
    ),
    Mistake(
        "when dispatch is mistaken for the kernel",
        lambda fn, clock: (timer(graph=False, clocked="host")(fn, clock)[0],) * 2,
        "Your loop launches one by one. If a launch costs the host 30 and the kernel 5, how long do 100 take? How can many "
        "launches cost the host no more than one?",
    ),
    Mistake(
        "when nobody synchronizes",
        lambda fn, clock: (timer(graph=False, clocked="host", wait="never", warm_up=200)(fn, clock)[0],) * 2,
        "A launch puts the kernel in a queue and returns. When is it done, and how would the host know?",
    ),
    Mistake(
        "when each launch is waited for inside the loop",
        lambda fn, clock: (timer(graph=False, clocked="host", wait="each")(fn, clock)[0],) * 2,
        "If the host waits for each launch, the device waits for the host. Whose time is it from one launch to the next?",
    ),
    Mistake(
        "when the first call is counted",
        _fresh_mean,
        "What does the first launch of a kernel do that no other does?",
    ),
    Mistake(
        "when the mean of a skewed sample is taken",
        timer(average=fmean),
        "One launch in two hundred takes a hundred times as long. What does that do to the mean, and what to the median?",
    ),
    Mistake(
        "when the worst of the sample is taken",
        timer(average=max),
        "The longest time says what disturbed you, not what the kernel takes.",
    ),
    Mistake(
        "when two events stand around a launch on an idle device",
        lambda fn, clock: (timer(graph=False, wait="each")(fn, clock)[0],) * 2,
        "The first event happens at once if the device has nothing to do. What is the device waiting for until the kernel "
        "comes?",
    ),
    Mistake(
        "when the device is not brought up to speed",
        timer(warm_up=0.0, repeats=21),
        "An idle device saves power. How much work does it take until it runs at full speed?",
    ),
    Mistake(
        "when the time of all launches of a graph is taken for one",
        timer(divide=False),
        "How many launches lie between your two events?",
    ),
    Mistake(
        "when L2 is never emptied",
        timer(flush="never"),
        "The launch before yours left its data in L2. What does `flush` do?",
    ),
    Mistake(
        "when L2 is emptied once for many launches",
        timer(flush="once"),
        "The first launch finds L2 full of something else. What does the second find?",
    ),
    Mistake(
        "when the flush is timed with the kernel",
        timer(flush="inside"),
        "A flush is work of the device, like the kernel. On which side of the first event should it be?",
    ),
    Mistake(
        "when L2 is emptied for both times",
        timer(flush="both"),
        "Warm means: its data are in L2. Who put them there?",
    ),
    Mistake("when cold comes first", timer(swap=True), "The result is (warm, cold)."),
    Mistake(
        "when seconds are returned",
        lambda fn, clock: tuple(t / 1e6 for t in timer()(fn, clock)),
        "The clock counts microseconds, and so should you.",
    ),
    Mistake(
        "when milliseconds are returned",
        lambda fn, clock: tuple(t / 1000 for t in timer()(fn, clock)),
        "The clock counts microseconds, and so should you.",
    ),
    Mistake(
        "when an event's time is read before anybody waited for it",
        timer(wait="never"),
        "Recording an event takes no time on the host. When does the host know what the device has done?",
    ),
]


PREDICT_TIME: list[Mistake] = [
    Mistake(
        "when sectors are counted as bytes",
        {"l2": "l2 = (load_sectors + store_sectors) / (132 * 32 * clock)"},
        "A sector is 32 bytes.",
    ),
    Mistake(
        "when everything requested comes from DRAM",
        lambda loads, stores, reds, line, dram, warm: 1.2 + (32 * (loads + stores + reds) + dram) / 4.8e6 + line / 280,
        "Sectors are requested from L2. How much of that goes on to DRAM is another count.",
    ),
    Mistake(
        "when a launch costs nothing",
        {
            "dram": "dram = 0.0 if from_l2 else dram_bytes / 4.8e6",
            "result": "return max(l2, reductions, contention) + dram",
        },
        "What does a launch take that does nothing?",
    ),
    Mistake(
        "when stores are forgotten",
        lambda loads, stores, reds, line, dram, warm: solution.predict_time(loads, 0, reds, line, dram, warm),
        "What is written goes through L2 as well.",
    ),
    Mistake(
        "when atomics are forgotten",
        lambda loads, stores, reds, line, dram, warm: solution.predict_time(loads, stores, 0, line, dram, warm),
        "Reductions are combined in L2, a sector at a time. How many does it combine in a clock?",
    ),
    Mistake(
        "when the busiest line is forgotten",
        lambda loads, stores, reds, line, dram, warm: solution.predict_time(loads, stores, reds, 0, dram, warm),
        "Reductions to one line are done one after the other.",
    ),
    Mistake(
        "when a cold launch is taken for a warm one",
        lambda loads, stores, reds, line, dram, warm: solution.predict_time(loads, stores, reds, line, dram, True),
        "What is not in L2 has to come from DRAM.",
    ),
    Mistake(
        "when the prediction is the same, whatever was counted",
        lambda loads, stores, reds, line, dram, warm: 10.0,
        "A launch has a floor. On top of it comes what each resource has to do: which counts say how much?",
    ),
    Mistake(
        "when bytes from DRAM are all that counts",
        lambda loads, stores, reds, line, dram, warm: 1.2 + dram / 4.8e6,
        "A launch whose data are in L2 asks DRAM for nothing, and still takes longer the more it asks of L2.",
    ),
    Mistake(
        "when seconds are returned",
        lambda *counts: solution.predict_time(*counts) / 1e6,
        "Microseconds, please.",
    ),
    Mistake(
        "when milliseconds are returned",
        lambda *counts: solution.predict_time(*counts) / 1000,
        "Microseconds, please.",
    ),
]
