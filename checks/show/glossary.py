"""The course's words. `words_of` finds those that a lab uses, so a lab's list cannot go stale."""

import re

__all__ = ["GLOSSARY", "anchor", "words_of"]

#: term → (definition, what to look for in a lab's text; the term itself if nothing else is given)
_ENTRIES: dict[str, tuple[str, str]] = {
    "accumulator": ("The variable a sum grows in. Its precision, not that of the summands, decides how much of the sum is lost.", r"accumulat"),
    "acquire-release": ("A memory ordering: what was written before a release is visible to whoever acquires from it. The default of Triton's atomics, and more than adding gradients needs.", r"acquire|releases"),
    "align_corners": ("Whether -1 and 1 (or 0 and 1) are the centres of the outermost pixels (True) or the edges of the image (False). This operator: edges.", r"align_corners"),
    "atomic operation": ("A read, change and write of memory that nothing can come between.", r"atomic"),
    "attention weight": ("How much one sampled point counts in a query's sum. It is predicted from the query, not from comparing it with keys.", r"attention.weight"),
    "autograd": ("PyTorch's way to find gradients: it records operations and goes back through them.", r"\bautograd"),
    "backward pass": ("Computing the gradients of a loss with respect to inputs, from the gradient with respect to the output.", r"backward"),
    "bandwidth": ("Bytes a second that a memory delivers. An H200's DRAM: 4.8 TB/s by the data sheet, about 4.3 in a copy.", r"bandwidth"),
    "batch": ("B: several images handled in one call.", r"\bbatch"),
    "bfloat16": ("A 16-bit float with float32's range and 8 bits of precision.", r"bfloat16|bf16"),
    "bilinear interpolation": ("Reading between pixels as a weighted mean of the four around a point; the weights are areas.", r"bilinear"),
    "block": ("In Triton: the elements one program handles at once. Also: the programs' share of a tensor.", r"\bblock"),
    "cache": ("Small, fast memory that keeps data which may be asked for again: L1 in each multiprocessor, L2 for the whole chip.", r"\bcache|\bL1\b|\bL2\b"),
    "capability": ("A GPU's generation as two numbers, which say what instructions there are: (8, 9) is written SM 8.9.", r"capabilit|\bSM \d"),
    "coalescing": ("The lanes of a warp reading neighbouring addresses, so that few sectors serve them all.", r"coalesc"),
    "compare-and-swap": ("An atomic that writes only if memory still holds what was read. A loop of it can build any atomic, slowly.", r"compare-and-swap|\bCAS\b"),
    "compulsory traffic": ("The bytes that must move at least once: each touched sector, however well the caches work.", r"compulsory"),
    "constexpr": ("A value known when a kernel is compiled; another value is another kernel.", r"constexpr"),
    "contiguous": ("Lying in memory without gaps, last axis fastest.", r"contiguous"),
    "CUDA graph": ("A recorded sequence of launches that is replayed without the host's cost for each.", r"CUDA.graph"),
    "deformable attention": ("Attention in which each query reads a few points whose places are predicted from the query.", r"deformable attention"),
    "dispatch": ("The host's work to start a kernel: checks, argument packing, the driver.", r"dispatch"),
    "DRAM": ("A GPU's large, far memory.", r"\bDRAM\b"),
    "encoder, decoder": ("In a detector, the layers that improve the pyramid, with every pixel a query; and those that look for objects in it, with a few hundred queries.", r"\b(?:en|de)coder"),
    "gather": ("Reading from addresses that are themselves data.", r"\bgather"),
    "gradcheck": ("Comparing an analytic gradient with finite differences, in float64.", r"gradcheck"),
    "grid": ("How many programs a launch runs, in up to three directions.", r"\bgrid\b(?!_)"),
    "half pixel": ("The 0.5 by which pixel centres and pixel edges differ.", r"half (a )?pixel"),
    "head": ("M: independent groups of channels with points and weights of their own.", r"\bhead"),
    "interpreter": ("Triton's way to run kernels in Python, on a CPU.", r"interpreter"),
    "kernel": ("A function that runs on the GPU, once for each program of a grid.", r"\bkernel"),
    "key": ("In ordinary attention, what a query is compared with. Deformable attention has none.", r"\bkeys\b"),
    "kink": ("A point where a function has a slope on either side and none of its own: here, wherever a pixel coordinate is a whole number.", r"\bkink"),
    "lane": ("One of the 32 threads of a warp; in Triton also one element of a block. A block of several warps does not move in step.", r"\blanes?\b"),
    "latency hiding": ("Having enough other work in flight that waiting for memory costs nothing.", r"latency"),
    "launcher": ("The Python function that allocates the output and launches a kernel.", r"launcher"),
    "layout": ("Which lane and register holds which element of a block.", r"\blayout"),
    "level": ("One feature map of a pyramid; L of them.", r"\blevels?\b"),
    "logits": ("The numbers that go into a softmax.", r"logits"),
    "loss": ("The one number that training makes smaller.", r"\bloss\b"),
    "LRU": ("Least recently used: a rule by which a cache makes room. A model here; no vendor says what GPUs do.", r"\bLRU\b"),
    "mask": ("Which elements of a block take part in an access.", r"\bmasks?\b|masked"),
    "multiprocessor": ("SM: the part of a GPU that runs warps, with registers and an L1 of its own. An H200 has 132.", r"multiprocessor"),
    "occupancy": ("How many warps a multiprocessor holds at once, of those it could. A proxy for latency hiding, not a goal.", r"occupancy"),
    "offset": ("How far a point lies from the query's reference point, in pixels of the level. In a kernel: elements from a pointer.", r"\boffset"),
    "paper GPU": ("This course's model of a GPU: it counts on a CPU what a profiler counts on silicon.", r"paper GPU"),
    "pointer": ("A number that says where in memory something lies.", r"\bpointer"),
    "program": ("In Triton: one run of the kernel's body, for one place in the grid.", r"\bprograms?\b"),
    "PTX": ("NVIDIA's assembly for a virtual GPU; a listing has a target, and an assembler (`ptxas`, or the driver) turns it into SASS.", r"\bPTX\b"),
    "pyramid": ("The same image at several resolutions.", r"pyramid"),
    "query": ("Q: whoever asks; in a detector, an object candidate or a pixel.", r"\bquer(?:y|ies)\b"),
    "race": ("Two accesses to one place, at least one of them a write, that nothing orders and that are not both atomic. An atomic beside a plain load is one.", r"\braces?\b|\bracy"),
    "reduction": ("Many values becoming one; as an instruction (`red`), an atomic whose old value nobody wants.", r"reduction"),
    "reference point": ("Where a query's offsets start: a pixel's own centre, or a guess where an object is.", r"reference.point"),
    "register": ("A thread's own storage for a number of 32 bits. A multiprocessor has 65,536. What does not fit spills to memory.", r"register"),
    "relaxed": ("A memory ordering that promises atomicity and nothing about other addresses: enough for adding.", r"relaxed"),
    "request": ("One memory instruction of one warp.", r"\brequests?\b"),
    "roofline": ("The bound on speed by bandwidth and by arithmetic, whichever is lower, over operations per byte.", r"roofline"),
    "sampling location": ("Where a point lies, as (x, y): 0 and 1 are the edges of the image, and it may lie outside.", r"sampling.location"),
    "SASS": ("The GPU's real machine code, and the last word on what an addition in memory becomes.", r"\bSASS\b"),
    "sector": ("32 bytes, the unit in which memory is moved between the caches.", r"\bsectors?\b"),
    "softmax": ("exp of each number over the sum of all: positive numbers that sum to 1.", r"softmax"),
    "spill": ("A register's value parked in memory because there were too few registers.", r"\bspill"),
    "stagnation": ("A sum that stops growing because what is added is less than half the spacing of its floats, or half and the tie goes back.", r"stagnat"),
    "stride": ("How many elements to step in memory to move by one along an axis.", r"\bstrides?\b"),
    "thread block": ("CUDA's word for the threads that run one of Triton's programs: num_warps warps.", r"thread block"),
    "tile": ("The part of the output one program owns.", r"\btil(?:e|es|ing|ings)\b"),
    "warp": ("32 threads that issue each instruction together.", r"\bwarps?\b"),
    "zero padding": ("Counting pixels outside the image as zero.", r"zeros outside|outside[^.]{0,40}zero"),
}  # fmt: skip

GLOSSARY: dict[str, str] = {term: definition for term, (definition, _) in _ENTRIES.items()}


def words_of(text: str) -> list[str]:
    """The terms that a text uses, in alphabetical order."""
    return [term for term, (_, pattern) in _ENTRIES.items() if re.search(pattern, text, re.IGNORECASE)]


def anchor(term: str) -> str:
    """The term's fragment in the glossary page."""
    return re.sub(r"\W+", "-", term.lower())
