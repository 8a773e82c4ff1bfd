"""The operator's Triton kernels. `forward` and `backward` are the ones that ship; `merged` are those for encoder scale, on
request until they are measured; `tilings` holds what the forward is raced against. `LOG.md` beside them says what was tried,
what was expected of it, and what was measured."""
