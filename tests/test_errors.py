"""The tree of errors and the wording of a missing extra."""

import builtins
import inspect
import sys

import pytest

from lmk_rag import errors
from lmk_rag.errors import LMKError, MissingExtraError, require_extra

ALL = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if kind.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", ALL)
def test_every_error_is_an_lmk_error_and_drawn_in_the_tree(kind):
    assert issubclass(kind, LMKError)
    assert kind.__name__ in errors.__doc__
    assert not hasattr(builtins, kind.__name__)


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("ConfigError", ValueError),
        ("InputError", ValueError),
        ("TextTooLongError", ValueError),
        ("CheckpointError", ValueError),
        ("UnsafeCheckpointError", ValueError),
        ("ClosedError", RuntimeError),
        ("NonFiniteError", ArithmeticError),
        ("StoreLockedError", RuntimeError),
        ("CollectionMismatchError", ValueError),
        ("UnsupportedFilterError", NotImplementedError),
        ("MissingExtraError", ImportError),
    ],
)
def test_an_error_can_be_caught_as_the_builtin_one_expects(name, builtin):
    assert issubclass(getattr(errors, name), builtin)


def test_an_installed_package_is_imported():
    assert require_extra("json.decoder", "x", "the thing") is sys.modules["json.decoder"]


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.part"])
def test_a_missing_package_names_what_needs_it_and_how_to_get_it(module):
    with pytest.raises(MissingExtraError) as caught:
        require_extra(module, "files", "reading PDF")
    assert str(caught.value) == (
        "reading PDF needs `no_such_package`; install it with: pip install 'lmk-rag[files]'"
    )


@pytest.mark.parametrize(
    ("package", "lacks"), [("broken_package", "another_package"), ("broken_package", "broken")]
)
def test_a_package_that_itself_lacks_something_is_not_called_missing(
    tmp_path, monkeypatch, package, lacks
):
    (tmp_path / f"{package}.py").write_text(f"import {lacks}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, package, raising=False)
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{lacks}'") as caught:
        require_extra(package, "files", "reading PDF")
    assert not isinstance(caught.value, MissingExtraError)
