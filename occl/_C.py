"""The extension. This module loads the one that was built for the PyTorch of this process, and becomes it."""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

import torch

from occl import versions

_folder = versions.extension_of(torch.__version__)
_spec = PathFinder.find_spec(__name__, [str(_folder)])
if _spec is None or _spec.loader is None:
    _source, _below = Path(*_folder.parts[:-3]), _folder.parts[-3:]
    _hidden = [it for it in sys.path if PathFinder.find_spec(__name__, [str(Path(it, *_below))])]
    raise ImportError(
        f"{_source} is the source of torch_occl, and hides the one that is installed in "
        f"{_hidden[0]}: start the program in another folder"
        if _hidden
        else f"{_folder} has no extension for this Python: torch_occl has not been built for it"
    )
sys.modules[__name__] = module_from_spec(_spec)
_spec.loader.exec_module(sys.modules[__name__])
