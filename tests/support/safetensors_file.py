"""Writes safetensors files of float32 tensors for tests, one tensor after the other."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch


def write_safetensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    header, place = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [place, place + tensor.nbytes]}
        place += tensor.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.detach().contiguous().numpy().tobytes())
