"""The model card contains the run's results, suppresses small counts, and can be signed."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.cli.model import CARD
from abaton.controller import Strategy
from abaton.deployment import make_model_card
from abaton.errors import SettingsError
from abaton.federation import Federation
from abaton.governance import DeniedError
from abaton.governance.key_files import read_public
from abaton.governance.keys import verifier
from abaton.governance.signed_statements import verify_statement
from abaton.models import Examples, logistic
from abaton.report import render_card_html, render_card_markdown


def test_the_card_contains_the_results_of_the_run(finished):
    card = make_model_card(finished)
    overall = card["performance"][0]
    assert overall["group"] == "all sites"
    assert overall["metrics"]["auroc"]["value"] == finished.metrics["auroc"]
    assert card["provenance"]["model"] == finished.versions[-1].digest
    assert [row["site"] for row in card["cohort"]] == ["athens", "kos", "pergamon", "trikala"]
    suppressed = [row["group"] for row in card["performance"] if row["metrics"] is None]
    assert suppressed
    assert card["limitations"][0] == f"Too few subjects to evaluate the model for: {', '.join(suppressed)}."
    attrition = {
        step["stage"]: step["subjects"] for step in finished.report()["cohort"]["sites"]["kos"]["attrition"]
    }
    assert card["cohort"][1] == {"site": "kos", **attrition}  # suppressed as in the report


def test_the_text_has_every_section_and_metric(finished):
    card = make_model_card(finished)
    text = render_card_markdown(card)
    for heading in (
        "Model",
        "Training subjects",
        "Performance",
        "Limitations",
        "Privacy",
        "Provenance",
    ):
        assert f"\n## {heading}\n" in text
    auroc = card["performance"][0]["metrics"]["auroc"]
    assert f"{auroc['value']:.3f} ({auroc['low']:.3f} to {auroc['high']:.3f})" in text
    assert card["provenance"]["document"] in text
    short = text.split("## Summary\n\n")[1].splitlines()[0]
    assert short.startswith(f"AUROC {auroc['value']:.3f} (")
    assert text.index("## Summary") < text.index("## Intended use"), "the result comes first"
    card["performance"][0]["metrics"] = None
    assert "There are too few test subjects" in render_card_markdown(card)


def test_texts_of_a_study_are_escaped(finished):
    card = {**make_model_card(finished), "title": "one\n\n# two <script>|[x](y)"}
    first = render_card_markdown(card).splitlines()[0]
    assert first == r"# one \# two \<script\>\|\[x\](y): model card"
    page = render_card_html(card)
    assert "<script" not in page
    assert "two &lt;script&gt;|[x](y)" in page


def test_the_page_has_the_content_of_the_text_and_fetches_nothing(finished):
    card = make_model_card(finished)
    page, text = render_card_html(card), render_card_markdown(card)
    for heading in re.findall(r"^## (.+)$", text, re.M):
        assert f">{heading}</h2>" in page
    auroc = card["performance"][0]["metrics"]["auroc"]
    assert f"{auroc['value']:.3f} ({auroc['low']:.3f} to {auroc['high']:.3f})" in page
    assert "default-src &#39;none&#39;" in page
    assert not re.search(r"(src|href)=\"(?!#)", page)


def test_a_signed_card_is_verified_and_a_change_detected(finished, tmp_path):
    passphrase_file, keys, out = tmp_path / "passphrase", tmp_path / "centre.keys", tmp_path / "card.json"
    passphrase_file.write_text("kos and athens\n")
    passphrase_file.chmod(0o600)
    runner = CliRunner()
    created = runner.invoke(
        app,
        ["keys", "new", str(keys), "--name", "centre", "--passphrase-file", str(passphrase_file), "--json"],
    )
    assert created.exit_code == 0, created.output
    written = runner.invoke(
        app,
        ["model", "card", "finished", "--store", str(finished.store.folder), "--out", str(out), "--keys", str(keys),
         "--passphrase-file", str(passphrase_file)],
    )  # fmt: skip
    assert written.exit_code == 0, written.output
    find = verifier(list(read_public(keys).keys))
    statement = json.loads(out.read_text())
    assert verify_statement(statement, CARD, find) == json.loads(json.dumps(make_model_card(finished)))
    statement["body"]["performance"][0]["metrics"]["auroc"]["value"] = 0.99
    with pytest.raises(DeniedError, match="does not verify"):
        verify_statement(statement, CARD, find)


def test_a_run_of_no_study_has_no_card(finished):
    x = np.random.default_rng(1).normal(size=(40, 2)).astype(np.float32)
    sites = {name: Examples(x, (x[:, 0] > 0).astype(np.int64)) for name in ("a", "b")}
    run = Federation(logistic(features=2), sites, Strategy(rounds=1)).run("none", store=finished.store)
    with pytest.raises(SettingsError, match="not a study run"):
        make_model_card(run)
