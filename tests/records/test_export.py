"""Exports: whole or not at all, in bounded memory, side by side, resumable, under names that tell nothing."""

from __future__ import annotations

import gzip
import json
import tracemalloc

import pytest
from tests.deid.record_examples import KEY, LEGAL_BASIS

from abaton.deid import DataRequest, DeidentificationSettings, Mechanism
from abaton.errors import SettingsError
from abaton.fhir.file_reader import RecordFile, find_files
from abaton.records.export import ExportJob, export_records
from abaton.records.export_state import STATE, ChunkResult, FileChunks

PATIENT = {"resourceType": "Patient", "name": [{"family": "Smith"}], "birthDate": "1980-02-03"}


def job(mechanism=Mechanism.PSEUDONYMISE, **more):
    return ExportJob(
        DataRequest("heart", (), DeidentificationSettings(mechanism=mechanism)),
        KEY,
        2026,
        LEGAL_BASIS,
        **more,
    )


def lines(count, start=0):
    return "".join(json.dumps({**PATIENT, "id": str(i)}) + "\n" for i in range(start, start + count))


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "in" / "Jo_Smith"
    inside.mkdir(parents=True)
    (inside / "Jo_Smith.json").write_text(json.dumps({**PATIENT, "id": "1"}, indent=2))
    (tmp_path / "in" / "Patient.000.ndjson").write_text(lines(20))
    (tmp_path / "in" / "Patient.001.ndjson.gz").write_bytes(gzip.compress(lines(20, 20).encode()))
    return tmp_path / "in"


def contents(out):
    sources = (path for path in out.rglob("*") if path.is_file() and path.name != STATE)
    return {str(path.relative_to(out)): path.read_bytes() for path in sources}


@pytest.mark.parametrize("processes", [1, 2])
def test_files_lines_and_gzip_come_out_under_safe_names(folder, tmp_path, processes):
    outcomes = export_records(find_files([str(folder)]), tmp_path / "out", job(), processes=processes)
    files = contents(tmp_path / "out")
    assert sorted(name for name in files if "Patient" in name) == [
        "Patient.000.ndjson",
        "Patient.001.ndjson.gz",
    ]
    assert len(files) == 3
    assert not any("Smith" in name for name in files)
    assert sum(outcome.transform_counts.kept_resources["Patient"] for outcome in outcomes) == 41
    assert len(gzip.decompress(files["Patient.001.ndjson.gz"]).splitlines()) == 20
    assert b"Smith" not in b"".join(files.values())
    assert "Smith" not in (tmp_path / "out" / STATE).read_text()


def test_processes_do_not_change_the_bytes(folder, tmp_path):
    for name, processes in (("one", 1), ("two", 2)):
        export_records(find_files([str(folder)]), tmp_path / name, job(), processes=processes)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.parametrize("processes", [2, 3])
def test_a_file_in_many_chunks_is_the_same_file(tmp_path, monkeypatch, processes):
    monkeypatch.setattr("abaton.records.export._MIN_CHUNK_BYTES", 1_000)
    (tmp_path / "Patient.ndjson").write_text(lines(700))
    for name, many in (("one", 1), ("many", processes)):
        (outcome,) = export_records(
            find_files([str(tmp_path / "Patient.ndjson")]), tmp_path / name, job(), processes=many
        )
        assert outcome.transform_counts.kept_resources["Patient"] == 700
    assert contents(tmp_path / "one") == contents(tmp_path / "many")


def test_pieces_are_put_together_in_their_order_whichever_is_ready_first(tmp_path):
    cut = [RecordFile("x", "Patient.ndjson", start, start + 1) for start in range(4)]
    pieces = FileChunks(RecordFile("x", "Patient.ndjson"), tmp_path / "Patient.ndjson", cut)
    for number in (2, 0, 3, 1):
        pieces.chunk_path(number).write_text(f"{number}\n")
        complete = pieces.add(
            number, ChunkResult("file 1", "" if number == 3 else str(pieces.chunk_path(number)))
        )
        assert (complete is None) is (number != 1)
    assert complete.out == str(tmp_path / "Patient.ndjson")
    assert contents(tmp_path) == {"Patient.ndjson": b"0\n1\n2\n"}


@pytest.mark.parametrize(
    "last",
    [ChunkResult("file 1", error="no"), ChunkResult("file 1", unresolved=frozenset({"urn:x"}))],
    ids=["refused", "unresolved"],
)
def test_a_file_with_a_missing_chunk_leaves_nothing(tmp_path, last):
    pieces = FileChunks(
        RecordFile("x", "a"), tmp_path / "a", [RecordFile("x", "a", 0, 1), RecordFile("x", "a", 1, 2)]
    )
    pieces.chunk_path(0).write_text("0\n")
    assert pieces.add(0, ChunkResult("file 1", str(pieces.chunk_path(0)))) is None
    complete = pieces.add(1, last)
    assert (complete.error, complete.unresolved, complete.out) == (last.error, last.unresolved, "")
    assert contents(tmp_path) == {}


def test_a_refusal_leaves_nothing_of_its_file_and_the_others_alone(folder, tmp_path):
    bad = folder / "Patient.002.ndjson"
    bad.write_text(lines(5) + '{"resourceType":"Patient","id":"1","id":"Smith"}\n' + lines(5))
    outcomes = export_records(find_files([str(folder)]), tmp_path / "out", job())
    (failed,) = [outcome for outcome in outcomes if outcome.error]
    assert failed.exit_code == 3
    assert "line 6" in failed.error
    assert "Smith" not in failed.error.replace(str(folder), "")
    assert not [name for name in contents(tmp_path / "out") if "002" in name or name.startswith(".")]
    assert len(contents(tmp_path / "out")) == 3


def test_refused_records_can_be_dropped(folder, tmp_path):
    (folder / "Patient.002.ndjson").write_text(lines(5) + '{"resourceType":"Smith"}\n')
    outcomes = export_records(find_files([str(folder)]), tmp_path / "out", job(skip_refused=True))
    assert sum(outcome.transform_counts.refused for outcome in outcomes) == 1
    assert len(contents(tmp_path / "out")["Patient.002.ndjson"].splitlines()) == 5


def test_an_interrupted_export_goes_on_where_it_stopped(folder, tmp_path):
    for mechanism in Mechanism:
        out = tmp_path / mechanism
        sources = find_files([str(folder)])

        def stop(outcome):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            export_records(sources, out, job(mechanism), on_progress=stop)
        first = contents(out)
        assert len(first) == 1
        outcomes = export_records(sources, out, job(mechanism), resume=True)
        assert len(outcomes) == 2
        files = contents(out)
        assert len(files) == 3
        assert first.items() <= files.items()
        assert export_records(sources, out, job(mechanism), resume=True) == []


def test_an_anonymous_export_forgets_its_key(folder, tmp_path):
    for name in ("one", "two"):
        export_records(find_files([str(folder)]), tmp_path / name, job(Mechanism.ANONYMISE))
        assert "key" not in json.loads((tmp_path / name / STATE).read_text())
    one, two = (
        json.loads(contents(tmp_path / name)["Patient.000.ndjson"].splitlines()[0])["id"]
        for name in ("one", "two")
    )
    assert one != two


def test_a_pseudonymised_export_goes_through_again_unchanged_and_an_anonymous_one_does_not(folder, tmp_path):
    for mechanism, same in ((Mechanism.PSEUDONYMISE, True), (Mechanism.ANONYMISE, False)):
        once, twice = tmp_path / f"{mechanism} once", tmp_path / f"{mechanism} twice"
        export_records(find_files([str(folder)]), once, job(mechanism))
        export_records(find_files([str(once)]), twice, job(mechanism))
        assert (sorted(contents(once).values()) == sorted(contents(twice).values())) is same


@pytest.mark.parametrize("processes", [1, 2])
def test_equal_names_in_different_folders_never_overwrite(tmp_path, processes):
    for folder_name, start in (("a", 0), ("b", 10), ("b/Jo_Smith", 20)):
        (tmp_path / folder_name).mkdir()
        (tmp_path / folder_name / "Patient.ndjson").write_text(lines(10, start))
    export_records(
        find_files([str(tmp_path / "a"), str(tmp_path / "b")]), tmp_path / "out", job(), processes=processes
    )
    files = contents(tmp_path / "out")
    assert {"folder-1/Patient.ndjson", "folder-2/Patient.ndjson"} < files.keys()
    assert len(files) == 3
    assert not any("Smith" in name for name in files)
    ids = {json.loads(line)["id"] for text in files.values() for line in text.splitlines()}
    assert len(ids) == 30
    assert not export_records(
        find_files([str(tmp_path / "a"), str(tmp_path / "b")]), tmp_path / "out", job(), resume=True
    )


def test_a_collision_is_refused_before_anything_is_written(tmp_path):
    for folder_name in "ab":
        (tmp_path / folder_name).mkdir()
        (tmp_path / folder_name / "Jo_Smith.json").write_text(lines(1))
    both = [str(tmp_path / folder_name / "Jo_Smith.json") for folder_name in "ab"]
    with pytest.raises(SettingsError, match="same output file") as refused:
        export_records(find_files(both), tmp_path / "out", job())
    assert "file 1 and file 2" in str(refused.value)
    assert "Smith" not in str(refused.value)
    assert not contents(tmp_path / "out")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_refusal_names_file_and_line_and_never_a_file(tmp_path, processes, monkeypatch):
    monkeypatch.setattr("abaton.records.export._MIN_CHUNK_BYTES", 1_000)
    (tmp_path / "Jo_Smith.ndjson").write_text(lines(300) + "\n" + '{"resourceType":"Smith"}\n' + lines(300))
    for show, name in ((False, "file 1"), (True, str(tmp_path / "Jo_Smith.ndjson"))):
        sources = find_files([str(tmp_path / "Jo_Smith.ndjson")], show_names=show)
        (outcome,) = export_records(sources, tmp_path / f"out {show}", job(), processes=processes)
        assert f"{name} line 302" in outcome.error
        assert ("Smith" in outcome.error) is show


def test_a_resource_with_an_unknown_modifier_leaves_its_file_alone(tmp_path):
    odd = json.dumps({**PATIENT, "id": "x", "modifierExtension": [{"url": "http://x.example/not"}]})
    (tmp_path / "Patient.ndjson").write_text(lines(100) + odd + "\n" + lines(100, 100))
    (outcome,) = export_records(find_files([str(tmp_path / "Patient.ndjson")]), tmp_path / "out", job())
    assert not outcome.error
    assert outcome.transform_counts.read["Patient"] == 201
    assert outcome.transform_counts.kept_resources["Patient"] == 200
    assert sum(outcome.transform_counts.dropped_resources.values()) == 1


def test_a_directory_that_is_not_empty_is_refused(folder, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").touch()
    with pytest.raises(SettingsError, match="not empty"):
        export_records(find_files([str(folder)]), tmp_path / "out", job())


def test_a_large_file_is_cut_where_lines_end(tmp_path):
    path = tmp_path / "Patient.ndjson"
    path.write_text(lines(1000))
    from abaton.fhir.file_reader import read_documents

    complete = [raw for raw, _ in read_documents(RecordFile(str(path), path.name))]
    for parts in (2, 3, 7):
        cut = RecordFile(str(path), path.name).split(parts, 1)
        assert len(cut) == parts
        assert [raw for part in cut for raw, _ in read_documents(part)] == complete


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
    peaks = []
    for count in (2_000, 20_000):
        path = tmp_path / f"Patient.{count}.ndjson"
        path.write_text(lines(count))
        tracemalloc.start()
        export_records([RecordFile(str(path), path.name)], tmp_path / f"out{count}", job(Mechanism.ANONYMISE))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # Identities are remembered up to a bound; that is all that may grow.
    assert peaks[1] < peaks[0] + 40 * 1024 * 1024
