"""What the files of a sentence-transformers folder are taken to say, old and new forms."""

import json

import pytest

from lmk_rag.errors import CheckpointError
from lmk_rag.st_folder import read_modules

PREFIX = "sentence_transformers.models."


@pytest.fixture
def folder(tmp_path):
    """Write the JSON files of a folder; no model."""

    def write(modules, **files):
        listed = [
            {"idx": i, "name": str(i), "path": path, "type": PREFIX + kind}
            for i, (kind, path) in enumerate(modules)
        ]
        for name, values in {"modules.json": listed, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(values), "utf-8")
        return tmp_path

    return write


USUAL = [("Transformer", ""), ("Pooling", "1_Pooling")]


def pooled(**config):
    return {"1_Pooling/config.json": config or {"pooling_mode": "mean"}}


def test_a_folder_without_modules_is_a_plain_encoder(tmp_path):
    settings = read_modules(tmp_path)
    assert settings.transformer == tmp_path
    assert settings.pooling == "lmk"
    assert not settings.trained_with_landmarks
    assert (settings.max_length, settings.lower_case) == (None, False)


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": "cls", "include_prompt": True}, "cls"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({"pooling_mode": "lmk"}, "lmk"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, "cls"),
    ],
)
def test_pooling_is_read_in_the_old_and_the_new_form(folder, config, pooling):
    assert read_modules(folder(USUAL, **pooled(**config))).pooling == pooling


@pytest.mark.parametrize(
    "config",
    [
        {"pooling_mode": "max"},
        {"pooling_mode": "lasttoken"},
        {"pooling_mode": "weightedmean"},
        {"pooling_mode": ["cls", "mean"]},
        {"pooling_mode_max_tokens": True},
        {"pooling_mode_weightedmean_tokens": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
        {"pooling_mode": "mean", "include_prompt": False},
    ],
)
def test_pooling_that_can_not_be_reproduced_is_refused(folder, config):
    with pytest.raises(CheckpointError, match="1_Pooling"):
        read_modules(folder(USUAL, **pooled(**config)))


@pytest.mark.parametrize(
    ("prompts", "default", "query", "document"),
    [
        ({}, None, "", ""),
        ({"query": "q: ", "document": "d: "}, None, "q: ", "d: "),
        ({"query": "q: ", "passage": "p: "}, None, "q: ", "p: "),
        ({"query": "q: ", "corpus": "c: "}, None, "q: ", "c: "),
        ({"query": "q: ", "document": "", "passage": "p: "}, None, "q: ", "p: "),
        ({"query": "q: ", "document": "d: ", "passage": "p: "}, None, "q: ", "d: "),
        ({"any": "a: "}, "any", "a: ", "a: "),
        ({"any": "a: ", "query": "q: "}, "any", "q: ", "a: "),
        ({"any": "a: "}, None, "", ""),
        (None, None, "", ""),
    ],
)
def test_prompts_are_found_under_the_names_in_use(folder, prompts, default, query, document):
    saved = {"prompts": prompts, "default_prompt_name": default}
    path = folder(USUAL, **pooled(), **{"config_sentence_transformers.json": saved})
    config = read_modules(path).config
    assert (config.query_prompt, config.document_prompt) == (query, document)


@pytest.mark.parametrize("name", ["sentence_bert_config.json", "sentence_roberta_config.json"])
def test_the_limit_and_lower_casing_are_read_from_beside_the_transformer(folder, name):
    saved = {f"0_T/{name}": {"max_seq_length": 77, "do_lower_case": True}}
    path = folder([("Transformer", "0_T"), ("Pooling", "1_Pooling")], **saved, **pooled())
    settings = read_modules(path)
    assert settings.transformer == path / "0_T"
    assert (settings.max_length, settings.lower_case) == (77, True)


def test_modules_are_taken_by_their_index_and_not_by_their_place(folder):
    path = folder(USUAL, **pooled())
    listed = json.loads((path / "modules.json").read_text())
    (path / "modules.json").write_text(json.dumps(listed[::-1]))
    assert read_modules(path).pooling == "mean"


@pytest.mark.parametrize(
    "modules", [[("LandmarkTransformer", "")], [("LandmarkTransformer", ""), USUAL[1]]]
)
@pytest.mark.parametrize(("saved", "k"), [({"eval_splitter_granularity": 128}, 128), ({}, 32)])
def test_a_landmark_transformer_brings_its_granularity(folder, modules, saved, k):
    settings = read_modules(folder(modules, **pooled(), **{"sentence_bert_config.json": saved}))
    assert settings.pooling == "lmk"
    assert settings.trained_with_landmarks
    assert (settings.config.granularity, settings.config.boundary) == (k, "token")


def test_dense_layers_keep_their_order_and_activations(folder):
    dense = {
        "2_Dense/config.json": {"activation_function": "torch.nn.modules.linear.Identity"},
        "3_Dense/config.json": {},
    }
    modules = [*USUAL, ("Dense", "2_Dense"), ("Dense", "3_Dense"), ("Normalize", "4_Normalize")]
    path = folder(modules, **pooled(), **dense)
    settings = read_modules(path)
    assert settings.activations == ("Identity", "Tanh")
    assert [file.relative_to(path).as_posix() for file in settings.dense_files] == [
        "2_Dense/model.safetensors",
        "3_Dense/model.safetensors",
    ]
