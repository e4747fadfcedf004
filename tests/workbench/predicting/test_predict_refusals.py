"""What tools/predict.py refuses, in one line each."""

import json
import shutil

import pytest
from detectron2.data import Metadata, MetadataCatalog

from ocr_panoptic.engine import memory, outputs
from ocr_panoptic.workbench.predicting import run
from support.tiny_runs import TILES


class TestRefusals:
    """Messages are one line that names the file and what to do."""

    @pytest.mark.slow
    def test_another_model_in_the_folder(self, model_of, call, images, tmp_path):
        assert call(model_of("semantic"), images) == 0
        with pytest.raises(ValueError, match="of another input, model or other options.*TEST.FLIP"):
            call(model_of("semantic", "TEST.FLIP", True), images)
        with pytest.raises(ValueError, match="weights_file_sha256"):
            call(model_of("panoptic"), images)
        with pytest.raises(ValueError, match="labels 'train', now 'dataset'"):
            call(model_of("semantic"), images, "--labels", "dataset")

    @pytest.mark.slow
    def test_another_input(self, model_of, call, images, tmp_path, caplog):
        """Results of another input would take the place of those that are there. More images in the
        same folder are added, and those that are gone are named."""
        folder, other = tmp_path / "images", tmp_path / "other"
        first, second, third, _ = sorted(images.iterdir())
        folder.mkdir(), other.mkdir()
        shutil.copy2(first, folder / "a.jpg"), shutil.copy2(first, other / "a.jpg")
        shutil.copy2(second, folder / "b.jpg")
        assert call(model_of("semantic"), folder) == 0
        before = (tmp_path / "out/labels.json").read_text()
        for source in (other, folder / "a.jpg"):
            with pytest.raises(ValueError, match=f"input '{folder}', now '{source}'"):
                call(model_of("semantic"), source)
        assert (tmp_path / "out/labels.json").read_text() == before
        (folder / "b.jpg").rename(tmp_path / "b.jpg")
        shutil.copy(third, folder / "c.jpg")
        assert call(model_of("semantic"), folder) == 0
        entries = json.loads((tmp_path / "out/labels.json").read_text())["images"]
        assert [entry["file_name"] for entry in entries] == ["a.jpg", "c.jpg"]
        assert "1 images that were predicted before are no longer in the input: b" in caplog.text

    @pytest.mark.slow
    def test_other_classes(self, model_of, call, images, monkeypatch):
        """Classes of the data set are compared, which neither config nor weights hold."""
        model = model_of("semantic")
        assert call(model, images) == 0
        metadata = MetadataCatalog.get("tiny_sem_val").as_dict()
        metadata["stuff_classes"] = ["globe", *metadata["stuff_classes"][1:]]
        monkeypatch.setattr(run, "class_metadata", lambda cfg: Metadata(**metadata))
        with pytest.raises(ValueError, match="classes_sha256"):
            call(model, images)

    @pytest.mark.slow
    def test_weights_of_another_model(self, model_of, call, images, tmp_path):
        """The folder can be used afterwards."""
        model, other = model_of("semantic"), model_of("panoptic")
        with pytest.raises(ValueError, match="do not fit the model"):
            call([*model[:3], other[3], *model[4:]], images)
        assert call(model, images) == 0

    def test_other_files_in_the_folder(self, model_of, call, images, tmp_path):
        (tmp_path / "out").mkdir()
        (tmp_path / "out/thesis.tex").write_text("")
        with pytest.raises(ValueError, match="out: holds other files.*empty folder"):
            call(model_of("semantic"), images)
        assert [p.name for p in (tmp_path / "out").iterdir()] == ["thesis.tex"]

    def test_inputs(self, model_of, call, images, tmp_path):
        model = model_of("semantic")
        (tmp_path / "none").mkdir()
        (tmp_path / "empty.txt").write_text("\n")
        (tmp_path / "x.pdf").write_text("")
        (tmp_path / "broken.avi").write_bytes(b"RIFF")
        for name, kind, message in (
            ("none", FileNotFoundError, "holds no image"),
            ("gone", FileNotFoundError, "gone: no such folder, list, image or video"),
            ("empty.txt", FileNotFoundError, "the list names no image"),
            ("x.pdf", ValueError, r"x.pdf: ends in .pdf; expected"),
            ("broken.avi", ValueError, "cannot open .*broken.avi"),
        ):
            with pytest.raises(kind, match=message):
                call(model, tmp_path / name)
        assert not (tmp_path / "out").exists()

    @pytest.mark.slow
    def test_truth(self, model_of, call, images, tmp_path):
        with pytest.raises(FileNotFoundError, match="a folder of label PNGs"):
            call(model_of("semantic"), images, "--eval", images.parent / "panoptic.json")
        content = json.loads((images.parent / "panoptic.json").read_text())
        content["categories"][0]["name"] = "globe"
        shutil.copytree(images.parent / "panoptic", tmp_path / "other")
        (tmp_path / "other.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match="other categories than tiny_val.*globe"):
            call(model_of("panoptic"), images, "--eval", tmp_path / "other.json", output="p")

    @pytest.mark.parametrize(
        "opts, message",
        [
            (("INPUT.MIN_SIZE_TEST", 0), "TEST.SLIDING_WINDOW is empty; set SIZE"),
            ((*TILES, "TEST.SLIDING_WINDOW.STRIDE", "[40, 40]"), "tiles overlap"),
            ((*TILES, "INPUT.MIN_SIZE_TEST", 32), "or raise --max-pixels"),
        ],
    )
    def test_a_panoptic_model_and_a_large_image(
        self, model_of, call, images, tmp_path, opts, message
    ):
        assert call(model_of("panoptic", *opts), images, "--max-pixels", 1000) == 1
        why = (tmp_path / "out/missing.txt").read_text().splitlines()[0]
        assert "image is too large to be seen at once: --max-pixels is 1000" in why
        assert message in why

    @pytest.mark.slow
    def test_a_semantic_model_without_windows_and_a_large_image(
        self, model_of, call, images, tmp_path, monkeypatch
    ):
        """The limit is that of the memory, and said."""
        monkeypatch.setattr(memory, "free_memory", lambda: 2**20)
        assert call(model_of("semantic"), images) == 1
        why = (tmp_path / "out/missing.txt").read_text().splitlines()[0]
        assert "75% of the free memory, 0.0 GiB, are for 0.0 megapixels" in why
        assert "TEST.SLIDING_WINDOW is empty; set SIZE" in why

    @pytest.mark.parametrize("limit", ["-5", "0", "many"])
    def test_a_number_of_pixels(self, predict, limit, capsys):
        with pytest.raises(SystemExit):
            predict(["--max-pixels", limit])
        assert "argument --max-pixels: " in capsys.readouterr().err

    def test_a_panoptic_model_and_whole_regions(self, model_of, call, images, tmp_path):
        with pytest.raises(ValueError, match="--whole-regions: is of a semantic model"):
            call(model_of("panoptic"), images, "--whole-regions")
        assert not (tmp_path / "out").exists()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "opts, message",
        [
            ((), "--whole-regions: TEST.SLIDING_WINDOW is empty"),
            (("INPUT.MIN_SIZE_TEST", 32), "--whole-regions: .*INPUT.MIN_SIZE_TEST is 32"),
        ],
    )
    def test_whole_regions_are_refused_once(self, model_of, call, images, opts, message):
        with pytest.raises(ValueError, match=message):
            call(model_of("semantic", *opts), images, "--whole-regions")

    @pytest.mark.parametrize(
        "error, message",
        [
            (OSError(5, "Input/output error"), "^.Errno 5. Input/output error$"),  # not of writing
            (ValueError("a defect"), "^a defect$"),  # no reason why an image has no results
        ],
    )
    def test_an_error_that_is_raised_as_it_is(
        self, model_of, call, images, monkeypatch, error, message
    ):
        def failing(*args):
            raise error

        monkeypatch.setattr(run.Predictor, "__call__", failing)
        with pytest.raises(type(error), match=message):
            call(model_of("semantic"), images)

    @pytest.mark.slow
    def test_a_full_disk(self, model_of, call, images, tmp_path, monkeypatch):
        """Files are whole, the list says what is missing, and a repetition goes on."""
        write, calls = outputs.write_label_png, []

        def failing(path, labels):
            calls.append(path)
            if len(calls) > 5:
                raise OSError(28, "No space left on device")
            write(path, labels)

        monkeypatch.setattr(outputs, "write_label_png", failing)
        with pytest.raises(OSError, match="No space left.*missing.txt names the others.*goes on"):
            call(model_of("semantic"), images)
        done = {p.stem for p in (tmp_path / "out/confidence").iterdir()}
        missing = (tmp_path / "out/missing.txt").read_text().splitlines()
        assert 0 < len(missing) < 4
        assert not done & {line.split(".")[0] for line in missing}
        monkeypatch.undo()
        assert call(model_of("semantic"), images) == 0
