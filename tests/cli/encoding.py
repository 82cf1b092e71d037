"""What the tests of quantize to EXL3 share: a model that is quick to encode, and folders as bytes."""
import json
import os
import re
import shutil
import struct

from program import NANO, TandemTest

TEXT = "calibration.jsonl"
QUICK = ("--scale-search", "none", "--threads", "1", "--window", "256")


def read_tensors(folder):
    """Name to (dtype, shape, bytes) of every tensor of a model folder."""
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, name), "rb") as file:
            data = file.read()
        length = int.from_bytes(data[:8], "little")
        for key, tensor in json.loads(data[8:8 + length]).items():
            if key != "__metadata__":
                begin, end = (8 + length + offset for offset in tensor["data_offsets"])
                tensors[key] = tensor["dtype"], tensor["shape"], data[begin:end]
    return tensors


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


class EncodeTest(TandemTest):
    def small_model(self, layers=(0, 1)):
        """Two layers of nano with two experts and nano's own tokenizer: quick, and shaped as the model is."""
        folder = self.path("small")
        os.mkdir(folder)
        shutil.copy(os.path.join(NANO, "tokenizer.json"), folder)
        with open(os.path.join(NANO, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        text = config.get("text_config", config)
        text.update(num_hidden_layers=len(layers), num_nextn_predict_layers=0, n_routed_experts=2)
        for key in ("layer_types", "mlp_layer_types"):
            text[key] = [text[key][layer] for layer in layers]
        for key in ("kda_layers", "full_attn_layers"):
            of_nano = text["linear_attn_config"][key]
            text["linear_attn_config"][key] = [at for at, layer in enumerate(layers) if layer in of_nano]
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        kept = {}
        for name, (dtype, shape, data) in read_tensors(NANO).items():
            layer, expert = re.search(r"layers\.(\d+)\.", name), re.search(r"experts\.(\d+)\.", name)
            if (layer and int(layer[1]) not in layers) or (expert and int(expert[1]) > 1):
                continue
            if layer:
                name = name.replace(layer[0], f"layers.{layers.index(int(layer[1]))}.")
            if ".mlp.gate." in name and shape[0] == 8:  # the router's rows of the experts that stay
                data, shape = data[:len(data) // 4], [2, *shape[1:]]
            kept[name] = dtype, shape, data
        write_tensors(os.path.join(folder, "model.safetensors"), kept)
        with open(os.path.join(NANO, "calibration_text.jsonl"), encoding="utf-8") as file:
            self.write(TEXT, "".join(file.readlines()[:3]))
        return folder

    def content(self, folder):
        found = {}
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), "rb") as file:
                found[name] = file.read()
        return found
