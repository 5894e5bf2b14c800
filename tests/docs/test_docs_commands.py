"""The commands of the documentation are commands that there are, with options that they have."""

import re
import shlex
from itertools import pairwise

import pytest
import typer
from fenced_blocks import PAGES, ROOT, commands, name

from density_softmax.cli.main import app
from density_softmax.recipes import RECIPES, prepare


def words_of(line):
    words = shlex.split(line)
    is_synopsis = any(word.startswith("[--") for word in words)
    return [word.strip("[].") for word in words] if is_synopsis else words


def found_command(words):
    command = typer.main.get_command(app)
    words = words[1:]
    while words and words[0].partition("|")[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0).partition("|")[0]]
    return command, words


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_and_their_options_exist(page):
    for line in commands(page, "density-softmax"):
        command, words = found_command(words_of(line))
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        options = {word for word in words if word.startswith("--")}
        assert options <= known, line
        assert not (hasattr(command, "commands") and words and words[0] not in known), line


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_changes_to_recipes_are_changes_that_they_take(page):
    for line in commands(page, "density-softmax"):
        words = words_of(line)
        if words[1:2] == ["train"] and words[2:] and words[2] in RECIPES:
            changes = [value for flag, value in pairwise(words) if flag == "--set"]
            methods = [value for flag, value in pairwise(words) if flag == "--method"]
            named = [method for method in methods if not method.isupper()]  # METHOD stands for any
            prepare(words[2], *(named or ["density_softmax"]), changes)


def with_what_it_imports(script):
    """The text of a script and of the modules beside it that it imports: options may be there."""
    text = script.read_text(encoding="utf-8")
    names = re.findall(r"^from (\w+) import", text, re.MULTILINE)
    beside = (script.with_name(f"{name}.py") for name in names)
    return "\n".join(
        [text, *(file.read_text(encoding="utf-8") for file in beside if file.exists())]
    )


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_scripts_and_their_options_exist(page):
    for line in commands(page, "python"):
        script, *options = line.split()[1:]
        text = with_what_it_imports(ROOT / script)
        for option in options:
            assert not option.startswith("--") or f'"{option}"' in text, line


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_targets_of_make_exist(page):
    targets = re.findall(
        r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    for line in commands(page, "make"):
        assert set(line.split()[1:]) <= set(targets), line
