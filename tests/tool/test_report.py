"""What the tool says is what it was given: no markup, no emoji, nothing that drives a terminal."""

from __future__ import annotations

import pytest

from lmsbuild import report


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (":x: :smile:", ":x: :smile:"),
        ("[bold]name[/bold] [/] \\[x]", "[bold]name[/bold] [/] \\[x]"),
        ("a\x1b[31mb\rc\x07", "a\\x1b[31mb\\rc\\x07"),
        ("a\u202egnp.exe", "a\\u202egnp.exe"),
        ("caf\udcc3", "caf\\udcc3"),
        ("größer\n\tnext", "größer\n\tnext"),
        ("x" * 500, "x" * 500),
    ],
)
@pytest.mark.parametrize("say", [report.failure, report.note, report.stage])
def test_a_message_is_shown_as_it_is(capsys: pytest.CaptureFixture[str], say: object, text: str, shown: str) -> None:
    assert callable(say)
    say(text)
    said = capsys.readouterr().err
    assert said.removeprefix("error:").strip(" \n") == shown.expandtabs(8) or said.endswith(f"{shown}\n")
