"""The stop file: there or not, and what counts as there."""

from pathlib import Path

from slurm_plugin.stop_file import engaged


def test_there_with_its_reason_or_without(tmp_path: Path) -> None:
    """Its first line is shown, made one line; an empty one stops as well."""
    path = tmp_path / "stop"
    assert engaged(str(path)) == ""
    assert engaged("") == ""
    path.write_bytes(b"odd\x00 things\nsince noon\xff")
    assert engaged(str(path)).startswith(f"{path}: odd")
    assert "\n" not in engaged(str(path))
    path.write_text("")
    assert engaged(str(path)) == f"{path} is there"


def test_what_cannot_be_looked_at_stops(tmp_path: Path) -> None:
    """A folder in its place, or a path that leads through a file: nobody knows, so nothing is done."""
    (tmp_path / "folder").mkdir()
    assert engaged(str(tmp_path / "folder"))
    (tmp_path / "file").touch()
    assert engaged(str(tmp_path / "file" / "stop"))
