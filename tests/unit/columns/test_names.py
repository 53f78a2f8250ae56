"""Names: what may be logged, and what a refusal says."""

from __future__ import annotations

import enum

import numpy as np
import pytest

from metrana_async.columns.names import (
    check_attribute_path,
    check_env_id,
    check_env_ids,
    check_labels,
    check_metric_name,
    check_name,
    check_repeatable_env_ids,
    check_scale,
)
from metrana_async.errors import InvalidNameError, InvalidTypeError


class Metric(str, enum.Enum):
    LOSS = "loss"


class Scale(enum.Enum):
    ML_STEP = "ML_STEP"


@pytest.mark.parametrize(
    "name",
    [
        "MAP@k",
        "huber_loss[delta=1.3]",
        "CPU-%",
        "a=b&c=d",
        "#1",
        "it's",
        "𝔼(X)",
        "a b",
        "a//b",
        "é",
    ],
)
def test_names_that_libraries_use_are_kept(name):
    """Punctuation, inner spaces and letters of any script are names as they are."""
    assert check_metric_name(name) == name


@pytest.mark.fault_row("H4")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "empty"),
        ("a\tb", "U+0009 at position 1"),
        ("ab\x7f", "U+007F at position 2"),
        ("a\x85", "U+0085 at position 1"),
        ("\ud800x", "U+D800 at position 0 is a lone surrogate"),
        ("a\u202eb", "U+202E at position 1"),
        (" a", "position 0 is white space"),
        ("ab ", "position 2 is white space"),
        ("x" * 257, "257 bytes"),
        ("é" * 129, "258 bytes"),
    ],
)
def test_refused_names_say_where(name, says):
    """The refusal names the character and its position, or the size."""
    with pytest.raises(InvalidNameError) as caught:
        check_metric_name(name)
    assert says in str(caught.value)


def test_the_longest_name_fits():
    """256 bytes are a name."""
    assert len(check_metric_name("é" * 128)) == 128


@pytest.mark.parametrize("name", [None, 3, b"x", ["x"]])
def test_other_types_are_no_names(name):
    """Only a str is a name; the error is a TypeError too."""
    with pytest.raises(TypeError):
        check_metric_name(name)


def test_subclasses_of_str_become_their_characters():
    """Numpy's str_ and a str enum are the characters they hold, as exact str."""
    assert [type(check_metric_name(n)) for n in (np.str_("a"), Metric.LOSS)] == [str, str]
    assert check_metric_name(Metric.LOSS) == "loss"


def test_scales():
    """None is ML_STEP; an enum member is its value; 64 bytes at most."""
    assert check_scale(None) == "ML_STEP"
    assert check_scale(Scale.ML_STEP) == "ML_STEP"
    assert check_scale("EPOCH") == "EPOCH"
    with pytest.raises(InvalidNameError):
        check_scale("x" * 65)


def test_labels_are_sorted_pairs():
    """Key order never matters; None is no label."""
    assert check_labels({"b": "2", "a": "1"}) == (("a", "1"), ("b", "2"))
    assert check_labels(None) == ()
    assert check_labels({"empty": ""}) == (("empty", ""),)


def test_evaluation_is_a_label_that_yields():
    """True adds evaluation=true unless the key is there; False and None add nothing."""
    assert check_labels(None, True) == (("evaluation", "true"),)
    assert check_labels({"k": "1"}, np.True_) == (("evaluation", "true"), ("k", "1"))
    assert check_labels({"evaluation": "no"}, True) == (("evaluation", "no"),)
    assert check_labels({}, False) == check_labels({}, None) == ()


@pytest.mark.parametrize("labels", [{"a": 1}, {1: "a"}, {"a": None}, [("a", "b")], "a"])
def test_labels_of_other_types_are_refused(labels):
    """Labels are a mapping of str to str; nothing is turned into text."""
    with pytest.raises(InvalidTypeError):
        check_labels(labels)


def test_evaluation_of_another_type_is_refused():
    """A number or a str is no flag."""
    with pytest.raises(InvalidTypeError):
        check_labels(None, "yes")


def test_labels_are_bounded():
    """16 labels, keys of 64 and values of 256 bytes."""
    assert len(check_labels({f"k{i}": "v" for i in range(16)})) == 16
    with pytest.raises(InvalidNameError):
        check_labels({f"k{i}": "v" for i in range(17)})
    with pytest.raises(InvalidNameError):
        check_labels({"k" * 65: "v"})
    with pytest.raises(InvalidNameError):
        check_labels({"k": "v" * 257})


@pytest.mark.parametrize("env_id", ["env0", "CartPole-v1:3", "a.b", "é", "x" * 128])
def test_env_ids(env_id):
    """URL-safe ids pass unchanged."""
    assert check_env_id(env_id) == env_id


@pytest.mark.parametrize(
    "env_id", ["", "a/b", "a\\b", "a?b", "a#b", "a%b", "a b", "a\n", ".", "..", "x" * 129, "\ud800"]
)
def test_refused_env_ids(env_id):
    """Separators, white space, control characters and directory names are no ids."""
    with pytest.raises(InvalidNameError):
        check_env_id(env_id)


def test_no_env_id_is_the_default_one():
    """None is the environment named default."""
    assert check_env_id(None) == "default"


def test_lists_of_env_ids():
    """A list, tuple or numpy array of str gives a tuple of exact str."""
    for ids in (["a", "b"], ("a", "b"), np.array(["a", "b"]), np.array(["a", "b"], dtype=object)):
        checked = check_env_ids(ids)
        assert checked == ("a", "b")
        assert {type(x) for x in checked} == {str}


def test_duplicates_are_named_with_both_positions():
    """An id twice in one list is refused; where rows are episodes it may repeat."""
    with pytest.raises(InvalidNameError, match=r"'b' occurs twice, at positions 1 and 3"):
        check_env_ids(["a", "b", "c", "b"])
    assert check_repeatable_env_ids(["a", "b", "a"]) == ("a", "b", "a")


@pytest.mark.parametrize("ids", [["a", 1], ["a", None], [["a"]], {"a"}, 3, np.array([1, 2])])
def test_what_is_no_list_of_ids(ids):
    """Elements are str; a set or a number is no list."""
    with pytest.raises(InvalidTypeError):
        check_env_ids(ids)


def test_paths_and_run_names():
    """Paths have up to 512 bytes, other names 256; control characters are in neither."""
    assert check_attribute_path("config/lr") == "config/lr"
    assert check_attribute_path("x" * 512)
    assert check_name("run_name", "my run") == "my run"
    for refused in ("", "x" * 513, "a\x00"):
        with pytest.raises(InvalidNameError):
            check_attribute_path(refused)
    with pytest.raises(InvalidNameError, match="run_name"):
        check_name("run_name", "x" * 257)
