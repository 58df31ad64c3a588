from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from abaton.cli import main
from abaton.lab import Partition


@pytest.fixture
def lab(monkeypatch, capsys):
    """Run `abaton lab` in this process."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.delenv("ABATON_DATA", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["abaton", "lab", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, left.value.code or 0, printed.out, printed.err)

    return run


def test_a_partition_is_shown_saved_and_drawn(lab, tmp_path):
    arguments = ["partition", "--learners", "10", "--sizes", "power-law", "--classes", "Non-IID(3x8)"]
    files = ["--out", str(tmp_path / "p.json"), "--figure", str(tmp_path / "p.html")]
    done = lab(*arguments, *files, "--json")
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    assert output["form"] == "power-law sizes, Non-IID(8x1,4x1,3x8)"
    assert [line["classes"] for line in output["learners"]] == [8, 4] + [3] * 8
    assert [line["group"] for line in output["learners"]] == ["fast", "slow"] * 5
    assert sum(line["examples"] for line in output["learners"]) == output["used"] == 4000
    saved = Partition.from_json(json.loads((tmp_path / "p.json").read_text()))
    assert saved.digest == output["digest"]
    assert "plotly" in (tmp_path / "p.html").read_text()
    table = lab(*arguments)
    assert "learner-01" in table.stdout
    assert output["digest"][:12] in table.stderr
    other = lab(*arguments, "--seed", "7", "--json")
    assert json.loads(other.stdout)["digest"] != output["digest"]


def test_natural_groups_and_own_tables(lab, tmp_path):
    rows = "".join(f"{i},{('kos', 'athens', 'trikala')[i % 3]},{i % 2}\n" for i in range(60))
    (tmp_path / "mine.csv").write_text("age,site,ill\n" + rows)
    arguments = ["partition", "--data", str(tmp_path / "mine.csv"), "--label", "ill"]
    done = lab(*arguments, "--natural", "--group", "site", "--json")
    assert [line["learner"] for line in json.loads(done.stdout)["learners"]] == ["athens", "kos", "trikala"]
    refused = lab(*arguments, "--natural")
    assert refused.returncode == 2
    assert "--group" in refused.stderr
    assert lab(*arguments, "--natural", "--group", "site", "--sizes", "skewed").returncode == 2


def test_the_list_of_data_sets_names_missing_files(lab, tmp_path):
    rows = json.loads(lab("data", "--json", ABATON_DATA=str(tmp_path)).stdout)
    assert {row["name"]: row["available"] for row in rows}["synthetic"] is True
    assert {row["name"]: row["missing"] for row in rows}["cifar10_20k"] == ["vision/cifar10_20k.npz"]
    done = lab("data")
    assert "mnist_by_writer" in done.stdout
    assert "ABATON_DATA" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "cifar10_20k"], "vision/cifar10_20k.npz"),
        (["--data", "nonsense"], "no data set"),
        (["--classes", "Non-IID(4x1)"], "4x1"),
        (["--classes", "Non-IID(11)"], "11 classes"),
        (["--sizes", "odd"], "no size distribution"),
        (["--learners", "1"], "two learners"),
        (["--learners", "0"], "two learners"),
        (["--learners", "5000"], "too few"),
        (["--slow", "11"], "slow is 11"),
    ],
)
def test_wrong_settings_are_one_line_and_exit_2(lab, arguments, message):
    done = lab("partition", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_figure_that_cannot_be_written_is_exit_2(lab, tmp_path):
    done = lab("partition", "--figure", str(tmp_path / "nowhere" / "p.html"))
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


SMALL = ["--rows", "800", "--rounds", "1.2", "--seeds", "1"]


def test_strategies_are_compared_stored_and_shown(lab, tmp_path, monkeypatch, capsys):
    arguments = [
        "compare",
        *SMALL,
        "--strategy",
        "SyncFedAvg",
        "--strategy",
        "AsyncDVW(na)",
        "--store",
        str(tmp_path),
    ]
    done = lab(*arguments, "--json", "--figure", str(tmp_path / "c.html"))
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    assert [line["strategy"] for line in output["rows"]] == ["SyncFedAvg", "AsyncDVW(na)"]
    assert "plotly" in (tmp_path / "c.html").read_text()
    assert "seed 1" in done.stderr
    arguments = ["show", "strategy", "--store", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["abaton", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert "matches 2 runs" in capsys.readouterr().err
    from abaton.store import Store

    with Store(tmp_path) as store:
        run = store.runs()[0].run
    monkeypatch.setattr(
        sys, "argv", ["abaton", "show", run, "--store", str(tmp_path), "--figure", str(tmp_path / "p.html")]
    )
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code
    assert "Non-IID(8x1,4x1,3x8)" in capsys.readouterr().out
    assert "learner-01 (fast)" in (tmp_path / "p.html").read_text()


def test_tables_and_figures_of_the_paper_are_listed_and_reproduced(lab, tmp_path):
    rows = json.loads(lab("reproduce", "--json").stdout)
    assert {row["name"] for row in rows} >= {"table1", "fig2", "fig9"}
    done = lab("reproduce", "fig4", "--scale", "0.005", "--rows", "800")
    assert "staleness" in done.stdout
    assert "reduced: time: 1.5 rounds of SyncFedAvg instead of about 200" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "fig1"], "no 'fig1'"),
        (["reproduce", "fig4", "--scale", "3"], "scale is 3"),
        (["compare", "--strategy", "Best"], "no strategy 'Best'"),
        (["compare", "--rounds", "-1"], "rounds is -1"),
        (["compare", "--rate", "0"], "learning_rate is 0"),
        (["compare", "--metric", "beauty"], "no metric"),
        (["compare", "--server", "adm"], "no server optimiser 'adm'"),
        (["compare", "--robust", "krum(lairs=1)"], "krum has no setting 'lairs'"),
        (
            ["compare", "--robust", "median", "--strategy", "AsyncFedAvg"],
            "robust_aggregation is CoordinateMedian()",
        ),
        (["compare", "--learners", "1"], "two learners"),
        (["robustness", "--data", "nothing"], "no data set"),
    ],
)
def test_wrong_experiments_are_one_line_and_exit_2(lab, arguments, message):
    done = lab(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_server_optimiser_robust_aggregation_and_own_validation_are_options(lab):
    arguments = ["compare", "--rows", "800", "--rounds", "1.2", "--seeds", "1", "--json"]
    default = json.loads(lab(*arguments).stdout)["rows"]
    done = lab(
        *arguments,
        "--server",
        "adam(rate=0.05)",
        "--robust",
        "trimmed_mean(fraction=0.2)",
        "--exclude-own-validation",
    )
    assert done.returncode == 0, done.stderr
    lines = json.loads(done.stdout)["rows"]
    assert [line["strategy"] for line in lines] == ["SyncFedAvg", "SyncDVW", "FedBuff", "FedBuffDVW"]
    before = {line["strategy"]: line for line in default}
    assert all(line != before[line["strategy"]] for line in lines)


def test_an_invalid_downlink_codec_is_refused_before_a_run(lab):
    done = lab("compare", "--downlink", "clip(norm=1.0) | stc(sparsity=0.1)", "--strategy", "SyncFedAvg")
    assert done.returncode == 2
    assert "applies to learners' updates" in done.stderr


def test_strategies_are_compared_on_a_table_with_hospitals(lab, tmp_path):
    rng = np.random.default_rng(1)
    rows = ["hospital;age;pressure;ill"]
    for hospital in ("kos", "athens", "pergamon"):
        for _ in range(60):
            age, pressure = rng.normal(60, 10), rng.normal(140, 15)
            ill = "yes" if age + pressure > 200 + rng.normal(0, 5) else "no"
            rows.append(f"{hospital};{age:.1f};{pressure:.1f};{ill}".replace(".", ","))
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n")
    table = ["compare", "--data", str(tmp_path / "table.csv"), "--seeds", "1", "--strategy", "SyncFedAvg"]
    grouped = [*table, "--label", "ill", "--group", "hospital", "--rounds", "2", "--batch", "10"]
    done = lab(*grouped, "--json")
    assert done.returncode == 0, done.stderr
    (line,) = json.loads(done.stdout)["rows"]
    assert line["environment"] == "one learner per hospital"
    assert line["accuracy"]["mean"] > 0.7
    done = lab(*grouped, "--sizes", "uniform")
    assert (done.returncode, "remove --learners, --sizes" in done.stderr) == (2, True)
    done = lab(*table, "--label", "sick")
    assert (done.returncode, "there is no column 'sick'" in done.stderr) == (2, True)
