"""Planted mistakes: the one line, or the warning, that each gets."""

import json
import shutil

import keras
import pytest

ERRORS = {  # The mistake: what was typed, and the only line.
    "arguments swapped: a run": (
        "--real=run --fake=real", "--real=run: is a run, whose images are generated; write it as"),
    "arguments swapped: data": (
        "--real=real --fake=digits", "--fake=digits: is real data; write it as --real"),
    "a misspelled data set": (
        "--real=digit --fake=fake", "MODULE:CLASS of a source. Did you mean 'digits'?"),
    "an empty folder": (
        "--real=real --fake=empty", "empty: has no images (file types: .bmp .gif .jpeg .jpg .png)"),
    "no such file": ("--real=real --fake=gone.zip", "gone.zip: no such folder or file"),
    "a file of text": (
        "--real=real --fake=file.txt", "file.txt: is a file; write a folder or .zip of images"),
    "floats in [0, 1]": (
        "--real=real --fake=unit.npz", "has numbers from 0 to 1, and images are uint8 from 0 to "
        "255; save np.uint8(np.round(255 * images)) of those in [0, 1], or np.uint8(np.round("),
    "floats in [0, 1] cast to integers": (
        "--real=real --fake=cast.npz", "no number is above 1, as if images in [0, 1] had been"),
    "channels first": (
        "--real=real --fake=first.npz", "must be the channels, 1 or 3; write images.transpose(0"),
    "a broken image": (
        "--real=real --fake=broken", "005.png cannot be read as an image (its content is not that"),
    "32 bits": ("--real=real --fake=deep", "003.png cannot be read as an image (its pixels have"),
    "images of two sizes": (
        "--real=real --fake=unequal", "010.png is 16x16 and the first image 8x8; write --resol"),
    "another resolution": (
        "--real=real --fake=large", "--real=real: has images of 8x8 pixels, and --fake=large of"),
    "a misspelled metric": (
        "--real=real --fake=fake --metrics=fdi", "no metric 'fdi': write some of fid,kid,prdc,is,"
        "swd,intra_fid. Did you mean 'fid'?"),
    "too few samples for a subset": (
        "--real=real --fake=fake --metrics=kid", "metric 'kid' of 24 real and 24 generated images: "
        "it needs at least 1,000 of each"),
    "too few samples for a covariance": (
        "--real=real --fake=one", "metric 'fid' of 24 real and 1 generated images"),
    "other counts for sorted distances": (
        "--real=real --fake=few --metrics=swd", "it takes as many of both"),
    "features without classes": (
        "--real=real --fake=fake --metrics=is", "colors has features, but no logits of classes"),
    "NaN features": (
        "--real=real --fake=black", "The generated features are NaN or infinite in 24 of 24 rows"),
    "images without classes": (
        "--real=classes --fake=fake --metrics=intra_fid", "metric 'intra_fid': --fake=fake has no "
        "classes; put the images of each class into a folder of their own"),
    "other classes": (
        "--real=classes --fake=others --metrics=intra_fid", "--real=classes has the classes cat, "
        "dog, and --fake=others cat, eel; give the folders of both the same names"),
    "a class without samples": (
        "--real=classes --fake=missing.npz --metrics=intra_fid", "Class 0 has 16 real and 0 gen"),
    "more samples than images": (
        "--real=real --fake=fake --samples=25", "--samples=25: --real=real has 24 images"),
    "no samples": ("--real=real --fake=fake --samples=0", "--samples=0: must be at least 1"),
    "a run that makes no images": (
        "--real=real --fake=agent", "object has no 'latents', so it is no GAN that can be sampled"),
    "a folder that exists": (
        "--real=real --fake=fake --out=empty", "--out=empty: exists; write another name, or rem"),
    "a file that exists": (
        "--real=real --fake=fake --json=file.txt", "--json=file.txt: exists; write another name"),
}
WARNINGS = {  # The mistake: what was typed, and the warning.
    "data beside itself": ("--real=real --fake=real", "the generated images are the real ones"),
    "data beside a copy": ("--real=real --fake=copy", "the generated images are the real ones"),
    "PNG beside JPEG": (
        "--real=real --fake=jpeg", "the real files are PNG, and the generated ones JPEG"),
    "other counts": (
        "--real=real --fake=few", "24 real and 7 generated images: most metrics depend on both "
        "counts; --samples=7 takes as many of each"),
    "gray beside color": (
        "--real=real --fake=gray", "all generated images are gray, and the real ones have colors"),
    "another resizing": (
        "--real=large --fake=run --resolution=8", "resizing of the real images: center squares to"),
    "too few samples for the features": (
        "--real=real --fake=fake --samples=5", "with fewer samples than dimensions it says little"),
}


@pytest.mark.parametrize("mistake", ERRORS)
def test_a_mistake_is_one_line(mistake, run, extractor):
  words, line = ERRORS[mistake]
  status, _, err = run(words + ("" if "--metrics" in words else " --metrics=fid,prdc"))
  assert line in err and err.startswith("error: ") and err.count("\n") == 1
  assert status == 2


@pytest.mark.parametrize("mistake", WARNINGS)
def test_what_changes_a_number_is_a_warning(mistake, run, extractor, tmp_path):
  words, line = WARNINGS[mistake]
  status, _, err = run(f"{words} --metrics=fid --json={tmp_path / 'a.json'}")
  assert status == 0
  assert [found for found in err.splitlines() if line in found]
  assert all(found.startswith("warning: ") for found in err.splitlines())
  warnings = json.loads((tmp_path / "a.json").read_text())["warnings"]
  assert err == "".join(f"warning: {found}\n" for found in warnings)


FEATURES = {
    "inceptoin": "write inception, efficientnet, classifier, or a file .pth or .keras. Did you "
                 "mean 'inception'?",
    "gone.pth": "--features=gone.pth: no such file",
    "classifier": "is trained on data with a name, such as --real=digits, or is that of a run in "
                  "--fake, which trained one on its own data; for real write --features=efficient",
    "inception": "cannot be downloaded (no network): download it elsewhere, and write "
                 "Inception2015.weights = 'PATH', or here --features=PATH",
}


@pytest.mark.parametrize("name", FEATURES)
def test_features_that_are_not_there_are_one_line(name, run, monkeypatch):
  def get_file(**arguments):
    raise OSError("no network")

  monkeypatch.setattr(keras.utils, "get_file", get_file)
  status, _, err = run(f"--real=real --fake=fake --features={name} --metrics=fid")
  assert status == 2 and FEATURES[name] in err and err.count("\n") == 1


def test_an_unknown_program_is_not_run_unseen(run, extractor, place, tmp_path):
  shutil.copytree(place / "run", tmp_path / "other")
  facts = json.loads((place / "run" / "run.json").read_text()) | {"program": ["other.py"]}
  (tmp_path / "other" / "run.json").write_text(json.dumps(facts))
  status, _, err = run(f"--real=real --fake={tmp_path}/other --metrics=fid")
  assert status == 2 and "names the program `other.py`" in err
