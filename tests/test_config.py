"""`LandmarkConfig`: values, JSON, fingerprint."""

import dataclasses

import pytest

from lmk_rag.config import LandmarkConfig
from lmk_rag.errors import ConfigError


def test_the_defaults_are_words_of_sixteen_tokens():
    assert LandmarkConfig() == LandmarkConfig(
        granularity=16,
        boundary="word",
        max_length=None,
        overlap=32,
        query_prompt="",
        document_prompt="",
        on_overflow="window",
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"granularity": 0}, "granularity is 0; expected a whole number of at least 1"),
        ({"granularity": 2.0}, "granularity is 2.0; expected a whole number"),
        ({"granularity": True}, "granularity is True; expected a whole number"),
        ({"granularity": "32"}, "granularity is '32'; expected a whole number"),
        ({"overlap": -1}, "overlap is -1; expected a whole number of at least 0"),
        ({"max_length": 2}, "max_length is 2; expected a whole number of at least 3"),
        ({"boundary": "line"}, "boundary is 'line'; expected one of token, word, sentence"),
        ({"on_overflow": None}, "on_overflow is None; expected one of window, truncate, error"),
        ({"query_prompt": 3}, "query_prompt is 3; expected a string or None"),
        ({"document_prompt": b"x"}, "document_prompt is b'x'; expected a string or None"),
    ],
)
def test_a_value_out_of_range_is_refused_with_what_was_found_and_expected(values, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        LandmarkConfig(**values)


def test_the_smallest_values_are_accepted():
    LandmarkConfig(granularity=1, overlap=0, max_length=3, query_prompt=None, document_prompt=None)


@pytest.mark.parametrize(
    ("boundary", "k", "longest"),
    [("token", 32, 32), ("word", 7, 7), ("sentence", 32, 48), ("sentence", 5, 7)],
)
def test_only_sentences_may_run_over_k(boundary, k, longest):
    assert LandmarkConfig(granularity=k, boundary=boundary).longest_stretch == longest


def test_json_is_sorted_and_comes_back_equal():
    config = LandmarkConfig(granularity=8, boundary="sentence", query_prompt="à la: ")
    assert config.to_json() == (
        '{"boundary": "sentence", "document_prompt": "", "granularity": 8, "max_length": null, '
        '"on_overflow": "window", "overlap": 32, "query_prompt": "à la: "}'
    )
    assert LandmarkConfig.from_json(config.to_json()) == config


def test_missing_keys_of_json_take_the_defaults():
    assert LandmarkConfig.from_json('{"granularity": 5}') == LandmarkConfig(granularity=5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[1]", r"is \[1\]; expected an object"),
        ('{"k": 3, "a": 1}', r"unknown keys \['a', 'k'\]; this version knows boundary, document"),
        ('{"granularity": 0}', "granularity is 0"),
    ],
)
def test_json_of_another_form_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        LandmarkConfig.from_json(text)


def test_the_fingerprint_is_that_of_every_setting():
    changed = {
        "granularity": 32,
        "boundary": "token",
        "max_length": 100,
        "overlap": 0,
        "query_prompt": "q",
        "document_prompt": None,
        "on_overflow": "error",
    }
    assert set(changed) == {field.name for field in dataclasses.fields(LandmarkConfig)}
    prints = {LandmarkConfig(**{name: value}).fingerprint() for name, value in changed.items()}
    prints.add(LandmarkConfig().fingerprint())
    assert len(prints) == len(changed) + 1
    assert all(len(print_) == 16 and int(print_, 16) >= 0 for print_ in prints)


def test_the_fingerprint_does_not_change_between_releases():
    assert LandmarkConfig(granularity=32).fingerprint() == "9f93a554c52d62e4"
    assert LandmarkConfig().fingerprint() == "101b16ac8affbe02"


def test_a_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        LandmarkConfig().granularity = 3
