"""A GGUF file's metadata, as a converter writes it from a config.json, right and with the base left out.

Run it: python examples/make_gguf.py [FOLDER], with `pip install 'ropeaudit[gguf]'`. On the command line:
ropeaudit check FOLDER/wrong.gguf --config examples/my-model/config.json
"""

import json
import sys
import tempfile
from pathlib import Path

import gguf

from ropeaudit import check

CONFIG = Path(__file__).parent / "my-model" / "config.json"


def write(path, config, base):
    """Write the keys of RoPE; llama.cpp takes 10000 where there is no base."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    if base:
        writer.add_rope_freq_base(config["rope_theta"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


with tempfile.TemporaryDirectory() as folder:
    folder = Path(sys.argv[1]) if sys.argv[1:] else Path(folder)
    for name, base in (("right.gguf", True), ("wrong.gguf", False)):
        write(folder / name, json.loads(CONFIG.read_text()), base)
        (result,) = (row for row in check(str(folder / name), config=str(CONFIG)) if row.judged)
        print(f"{name}: {result.finding.status} {result.finding.resembles}".strip())

# Output:
# right.gguf: pass
# wrong.gguf: fail base 10000 instead of 500000
