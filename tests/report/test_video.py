"""Episodes as films."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
from fake_runs import fake_run
from PIL import Image

import upslope as up
from upslope.cli import main
from upslope.errors import MissingExtra, UserError
from upslope.report import video
from upslope.report.checkup import episode
from upslope.tasks.gym import GymTask
from upslope.tasks.rendering import drawn

SMALL = dict(steps=1, envs=2, horizon=8, passes=1, eval_problems=2, record="none", threads=1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    return up.load(up.train("ppo", "gym:CartPole-v1", **SMALL, out=tmp_path_factory.mktemp("video") / "run").path)


def test_a_film_has_every_step_of_the_episode(run, tmp_path: Path, capsys):
    assert main(["try", str(run.path), "--seed", "3", "--video", str(tmp_path / "here" / "film.mp4")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == episode(run, 3).splitlines()[0] and said[-1].endswith("film.mp4")
    steps = int(said[0].split(" in ")[1].split()[0])
    frames = imageio_ffmpeg.read_frames(str(tmp_path / "here" / "film.mp4"))
    about = next(frames)
    assert about["size"] == (600, 400) and about["fps"] == 50
    pictures = [np.frombuffer(frame, np.uint8) for frame in frames]
    assert len(pictures) == steps + 1 and (pictures[0] != pictures[-1]).any()
    assert list((tmp_path / "here").iterdir()) == [tmp_path / "here" / "film.mp4"]


def test_a_gif_by_pillow(run, tmp_path: Path):
    said = video.film(run, tmp_path / "film.gif")
    with Image.open(tmp_path / "film.gif") as made:
        lasts = 0
        for frame in range(made.n_frames):  # equal pictures in a row are one that lasts longer
            made.seek(frame)
            lasts += made.info["duration"]
    assert f"{lasts // 20} pictures at 50 a second" in said and made.n_frames > 5


@pytest.mark.parametrize(
    ("name", "said"), [("film.avi", ".mp4 or .gif"), ("film", ".mp4 or .gif"), ("film.mp", "Did you mean '.mp4'")]
)
def test_other_files_are_refused(run, tmp_path: Path, name: str, said: str):
    with pytest.raises(UserError) as found:
        video.film(run, tmp_path / name)
    assert said in str(found.value)


def test_what_cannot_be_drawn_says_why_and_leaves_nothing(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(place: object) -> None:
        raise RuntimeError("no display")

    monkeypatch.setattr(video, "picture", broken)
    with pytest.raises(UserError, match=r"gym:CartPole-v1 cannot be drawn here \(RuntimeError: no display\)"):
        video.film(run, tmp_path / "film.mp4")
    assert list(tmp_path.iterdir()) == []
    cheetah = GymTask("HalfCheetah-v5")
    assert "MUJOCO_GL=egl" in video._not_drawn(cheetah, RuntimeError("x")) and "osmesa" in video._not_drawn(
        cheetah, RuntimeError("x")
    )


def test_a_missing_package_names_the_extra(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingExtra, match=r"imageio-ffmpeg is not installed(?s:.*)\[video\]"):
        video.film(run, tmp_path / "film.mp4")


def test_text_has_no_film_and_a_window_is_another_thing(run, tmp_path: Path, capsys):
    assert main(["try", str(run.path), "--video", "film.mp4", "--render"]) != 0
    assert "Leave one out" in capsys.readouterr().err
    text = fake_run(tmp_path, "grpo", 0, 0.5)
    assert main(["try", str(text), "--video", "film.mp4"]) != 0
    assert "--video goes with environments" in capsys.readouterr().err


def test_pictures_of_mujoco_are_small_and_without_shadows():
    task = drawn(GymTask("HalfCheetah-v5"), 240)
    assert task.options == {"width": 240, "height": 240, "render_mode": "rgb_array"}
    env = task.make_one()
    assert (env.unwrapped.model.vis.quality.shadowsize, env.unwrapped.model.vis.quality.offsamples) == (0, 0)
    env.close()
    assert drawn(GymTask("CartPole-v1"), 240).options == {"render_mode": "rgb_array"}, "only MuJoCo's have a size to be chosen"


@pytest.mark.slow
def test_mujoco_without_a_backend_says_what_to_set(tmp_path: Path):
    run = up.train("ppo", "gym:HalfCheetah-v5:max_episode_steps=20", **SMALL, out=tmp_path / "run")
    # A backend that is nowhere: the same on every machine.
    code = (
        "import os, sys\nos.environ['MUJOCO_GL'] = 'osmesa'\nsys.modules['OpenGL'] = None\n"
        "from upslope.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    words = ["try", str(run.path), "--video", str(tmp_path / "film.mp4")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "cannot be drawn here" in done.stderr and "MUJOCO_GL=egl" in done.stderr
    assert not (tmp_path / "film.mp4").exists()
