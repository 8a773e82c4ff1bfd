"""The operator as a repository of the Hugging Face Hub's kernels, which `kernels.get_kernel` loads.

    python -m msda_core.integrations.hub DIRECTORY

writes `DIRECTORY/build/torch-universal/`: the package without its machine, figures and integrations, importing itself by relative
names alone; `metadata.json`; `layers.py`, whose layer stands in for transformers' `MultiScaleDeformableAttention`; and, for loaders
before 0.11, a folder with the repository's name. Nothing is uploaded.

    from kernels import get_local_kernel
    msda = get_local_kernel(pathlib.Path("DIRECTORY"))
    msda.multi_scale_deformable_attention(...)

A loader may hold several versions at once, each as a module with a name of its own; so the operators are registered under the
name of the module, and the module is named for its content.

Source: the requirements of kernels 0.17 (huggingface.co/docs/kernels/v0.17.0/kernel-requirements).
"""

import argparse
import hashlib
import json
import pathlib
import re

import msda_core

__all__ = ["write"]

NAME = "msda_core"
VARIANT = "torch-universal"
PARTS = (
    "device.py",
    "nn.py",
    "reference.py",
    "sampling.py",
    "shapes.py",
    "ops",
    "kernels",
    "integrations/deformable_detr.py",
)

_INIT = '''
"""Multi-scale deformable attention on Triton kernels: msda_core {version}."""

from . import layers
from .integrations.deformable_detr import ms_deform_attn_backward, ms_deform_attn_forward
from .nn import MSDeformAttn, MSDeformAttn3D, SpatialCrossAttention, TemporalSelfAttention
from .ops import multi_scale_deformable_attention

__all__ = [
    "MSDeformAttn",
    "MSDeformAttn3D",
    "SpatialCrossAttention",
    "TemporalSelfAttention",
    "layers",
    "ms_deform_attn_backward",
    "ms_deform_attn_forward",
    "multi_scale_deformable_attention",
]
'''

_LAYERS = '''
"""The layer that transformers asks the Hub for: its operator, without parameters."""

from torch import Tensor, nn

from .ops import multi_scale_deformable_attention


class MultiScaleDeformableAttention(nn.Module):
    """In the signature of transformers' module of the same name. Returns (B, Q, M*D)."""

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(
        self,
        value: Tensor,
        value_spatial_shapes: Tensor,
        value_spatial_shapes_list: list[tuple[int, int]] | None,
        level_start_index: Tensor | None,
        sampling_locations: Tensor,
        attention_weights: Tensor,
        im2col_step: int | None = None,
    ) -> Tensor:
        shapes = value_spatial_shapes if value_spatial_shapes_list is None else value_spatial_shapes_list
        return multi_scale_deformable_attention(value, shapes, None, sampling_locations, attention_weights)
'''

#: For loaders that look into a folder named as the repository: the same module, loaded from the folder above.
_SHIM = """
import importlib.util
import pathlib
import sys

_name = "{id}"
if _name not in sys.modules:
    _spec = importlib.util.spec_from_file_location(_name, pathlib.Path(__file__).parent.parent / "__init__.py")
    sys.modules[_name] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_name])
globals().update({{name: getattr(sys.modules[_name], name) for name in sys.modules[_name].__all__}})
__all__ = sys.modules[_name].__all__
"""


def write(directory: pathlib.Path | str) -> pathlib.Path:
    """Write the repository.

    Args:
        directory: made where it is missing.

    Returns:
        The folder of the build variant.

    Raises:
        ValueError: the variant is there already.
    """
    variant = pathlib.Path(directory) / "build" / VARIANT
    if variant.exists():
        raise ValueError(f"{variant} must not exist yet, got a folder or a file there. Is it of another version?")
    files = _package()
    digest = hashlib.sha256("".join(f"{name}\0{text}\0" for name, text in sorted(files.items())).encode()).hexdigest()
    unique = f"_{NAME}_{digest[:12]}"
    files[f"{NAME}/__init__.py"] = _SHIM.format(id=unique).lstrip()
    files["metadata.json"] = json.dumps(
        {
            "id": unique,
            "name": NAME.replace("_", "-"),
            "version": 1,
            "license": "MIT",
            "python-depends": [],
            "backend": {"type": "cuda"},
        },
        indent=2,
    )
    for name, text in files.items():
        path = variant / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return variant


def _package() -> dict[str, str]:
    """File name → text of everything in the variant that does not depend on its name."""
    root = pathlib.Path(msda_core.__file__).parent
    files = {"__init__.py": _INIT.format(version=msda_core.__version__).lstrip(), "layers.py": _LAYERS.lstrip()}
    files["integrations/__init__.py"] = ""
    for part in PARTS:
        for path in sorted((root / part).rglob("*.py")) if (root / part).is_dir() else [root / part]:
            name = path.relative_to(root)
            if "tests" not in name.parts:
                files[name.as_posix()] = _relative(path.read_text(encoding="utf-8"), len(name.parts))
    return files


def _relative(text: str, depth: int) -> str:
    """Imports of msda_core become relative ones, of a file that lies `depth` names below the package."""
    return re.sub(rf"^(\s*from ){NAME}\.?(?=[\w ])", rf"\g<1>{'.' * depth}", text, flags=re.M)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m msda_core.integrations.hub", description=__doc__.split("\n")[0])
    parser.add_argument("directory", help="of the repository; made where it is missing")
    print(write(parser.parse_args().directory))


if __name__ == "__main__":
    main()
