"""The model card says what the run found, keeps small numbers masked, and can be signed."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.cli.model import CARD
from abaton.controller import Rules
from abaton.errors import SettingsError
from abaton.federation import Federation
from abaton.governance import Denied
from abaton.governance.keys import read_public, verifier
from abaton.governance.signed_statements import check
from abaton.learners import Examples, logistic
from abaton.report import card_markdown, card_page
from abaton.deployment import card_of


def test_the_card_holds_what_the_run_found(ended):
    card = card_of(ended)
    whole = card["performance"][0]
    assert whole["group"] == "all sites"
    assert whole["measures"]["auroc"]["value"] == ended.metrics["auroc"]
    assert card["provenance"]["model"] == ended.versions[-1].digest
    assert [each["site"] for each in card["cohort"]] == ["athens", "kos", "pergamon", "trikala"]
    untold = [each["group"] for each in card["performance"] if each["measures"] is None]
    assert untold
    assert card["limits"][0] == f"Too few people to judge the model for: {', '.join(untold)}."
    told = ended.report()["cohort"]["sites"]["kos"]["funnel"]
    assert card["cohort"][1]["rows"] == told[-1]["subjects"]  # masked there, masked here


def test_the_text_has_every_part_and_every_number(ended):
    card = card_of(ended)
    text = card_markdown(card)
    for heading in (
        "Model",
        "Whom it was learned from",
        "How good it is",
        "Limits",
        "Privacy",
        "Where it comes from",
    ):
        assert f"\n## {heading}\n" in text
    auroc = card["performance"][0]["measures"]["auroc"]
    assert f"{auroc['value']:.3f} ({auroc['low']:.3f} to {auroc['high']:.3f})" in text
    assert card["provenance"]["document"] in text
    short = text.split("## In short\n\n")[1].splitlines()[0]
    assert short.startswith(f"AUROC {auroc['value']:.3f} (")
    assert text.index("## In short") < text.index("## What it is for"), "the result comes first"
    card["performance"][0]["measures"] = None
    assert "Too few people could be tested" in card_markdown(card)


def test_a_studys_words_cannot_change_the_page(ended):
    card = {**card_of(ended), "title": "one\n\n# two <script>|[x](y)"}
    first = card_markdown(card).splitlines()[0]
    assert first == r"# one \# two \<script\>\|\[x\](y): model card"
    page = card_page(card)
    assert "<script" not in page
    assert "two &lt;script&gt;|[x](y)" in page


def test_the_page_says_what_the_text_says_and_fetches_nothing(ended):
    card = card_of(ended)
    page, text = card_page(card), card_markdown(card)
    for heading in re.findall(r"^## (.+)$", text, re.M):
        assert f">{heading}</h2>" in page
    auroc = card["performance"][0]["measures"]["auroc"]
    assert f"{auroc['value']:.3f} ({auroc['low']:.3f} to {auroc['high']:.3f})" in page
    assert "default-src &#39;none&#39;" in page
    assert not re.search(r"(src|href)=\"(?!#)", page)


def test_a_signed_card_is_checked_and_a_changed_one_noticed(ended, tmp_path):
    words, keys, out = tmp_path / "words", tmp_path / "centre.keys", tmp_path / "card.json"
    words.write_text("kos and athens\n")
    words.chmod(0o600)
    runner = CliRunner()
    made = runner.invoke(
        app, ["keys", "new", str(keys), "--name", "centre", "--passphrase-file", str(words), "--json"]
    )
    assert made.exit_code == 0, made.output
    told = runner.invoke(
        app,
        ["model", "card", "ended", "--store", str(ended.store.folder), "--out", str(out), "--keys", str(keys),
         "--passphrase-file", str(words)],
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    find = verifier(list(read_public(keys).keys))
    statement = json.loads(out.read_text())
    assert check(statement, CARD, find) == json.loads(json.dumps(card_of(ended)))
    statement["body"]["performance"][0]["measures"]["auroc"]["value"] = 0.99
    with pytest.raises(Denied, match="does not fit"):
        check(statement, CARD, find)


def test_a_run_of_no_study_has_no_card(ended):
    x = np.random.default_rng(1).normal(size=(40, 2)).astype(np.float32)
    sites = {name: Examples(x, (x[:, 0] > 0).astype(np.int64)) for name in ("a", "b")}
    run = Federation(logistic(features=2), sites, Rules(rounds=1)).run("none", store=ended.store)
    with pytest.raises(SettingsError, match="no study's"):
        card_of(run)
