"""What a notebook shows: lessons, derivations, the reading edition, the glossary."""
