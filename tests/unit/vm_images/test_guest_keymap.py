"""Key names, strokes, and spare keys for characters that the map lacks."""

import pytest
from dart_guest.keymap import Keymap, Stroke, UnknownKey, character_keysym, key_keysym

A_ROW = [0x61, 0x41, 0x61, 0x41]
FIVE_ROW = [0x35, 0x25, 0x35, 0x25, 0x20AC + 0x01000000]
NONE_ROW = [0, 0, 0, 0]


def sample(spares: int = 2) -> Keymap:
    """Key 8 makes a and A, key 9 makes 5, %, and the euro sign with AltGr; then spare keys."""
    return Keymap([A_ROW, FIVE_ROW, *[list(NONE_ROW) for _ in range(spares)]], first=8)


@pytest.mark.parametrize(
    ("name", "keysym"),
    [("enter", 0xFF0D), ("Ctrl", 0xFFE3), ("f12", 0xFFC9), ("num7", 0xFFB7), ("pgdn", 0xFF56), ("a", 0x61),
     ("%", 0x25), ("é", 0xE9), ("Ж", 0x01000416), ("🙂", 0x0101F642), (" ", 0x20), ("space", 0x20)],
)  # fmt: skip
def test_key_names(name: str, keysym: int) -> None:
    assert key_keysym(name) == keysym


def test_unknown_names_and_control_characters_are_refused() -> None:
    with pytest.raises(UnknownKey, match="'foo'"):
        key_keysym("foo")
    with pytest.raises(UnknownKey, match=r"U\+0001"):
        character_keysym("\x01")
    with pytest.raises(UnknownKey):
        character_keysym("\ud800")


def test_newline_and_tab_are_keys() -> None:
    assert (character_keysym("\n"), character_keysym("\t")) == (0xFF0D, 0xFF09)


def test_strokes_take_the_fewest_modifiers() -> None:
    keymap = sample()
    assert keymap.find(0x61) == Stroke(8)
    assert keymap.find(0x41) == Stroke(8, ("shift",))
    assert keymap.find(0x010020AC) == Stroke(9, ("altgr",))
    assert keymap.find(0x01000416) is None


def test_spare_keys_are_given_out_and_kept() -> None:
    keymap = sample()
    assert keymap.spares == [10, 11]
    assert keymap.borrow([0x1000416]) == {10: 0x1000416}
    assert keymap.find(0x1000416) == Stroke(10)
    assert keymap.missing([0x1000416, 0x61, 0x1000417, 0x1000417]) == [0x1000417]


def test_the_longest_unused_spare_key_is_given_again() -> None:
    keymap = sample()
    keymap.borrow([1001, 1002])
    keymap.find(1001)
    assert keymap.borrow([1003]) == {11: 1003}
    assert keymap.find(1002) is None
    assert keymap.find(1001) == Stroke(10)


def test_a_held_character_keeps_its_spare_key() -> None:
    keymap = sample()
    keymap.borrow([1001, 1002])
    assert keymap.borrow([1003], keep=frozenset({1001, 1003})) == {11: 1003}
    with pytest.raises(UnknownKey, match="no spare key"):
        keymap.borrow([1004], keep=frozenset({1001, 1003, 1004}))


def test_a_text_is_cut_where_spare_keys_run_out() -> None:
    keymap = sample()
    runs = keymap.batches([0x61, 1001, 1002, 1001, 0x61, 1003, 1001])
    assert runs == [[0x61, 1001, 1002, 1001, 0x61], [1003, 1001]]
    assert [keysym for run in runs for keysym in run] == [0x61, 1001, 1002, 1001, 0x61, 1003, 1001]


def test_a_character_that_another_program_left_on_a_spare_key_is_found_and_may_be_replaced() -> None:
    keymap = Keymap([[0x61, 0x41], [0x1000416, 0x1000416, 0], [0xE9, 0xE9], [0xFF0D, 0xFF0D], [0xE9, 0xC9], [0]])
    assert keymap.spares == [9, 10, 13]
    assert keymap.find(0x1000416) == Stroke(9)
    assert keymap.find(0xFF0D) == Stroke(11)
    assert keymap.borrow([1, 2]) == {13: 1, 10: 2}
