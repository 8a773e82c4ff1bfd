"""The operator's Triton kernels. `forward` and `backward` are the ones that ship, `merged` those for encoder scale; `second` holds
second derivatives, `nearest` RT-DETRv2's discrete sampling, `fit` the check of a level table; `tilings` what the forward is
raced against. `LOG.md` beside them says what was tried, what was expected of it, and what was measured."""
