"""The board answers this machine, or whoever has the token; nobody's web page, and nothing outside of the runs folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from board_folders import ADDRESS, client, write_rollout, write_run

from upslope.board.access import HEADERS, Door
from upslope.errors import UserError
from upslope.runtime.access import check_reach, host_of, is_loopback, same_key

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    run = write_run(tmp_path / "runs" / "a")
    write_rollout(run, 1, {"version": 1, "step": 1, "groups": []})
    return tmp_path / "runs"


@pytest.mark.parametrize("host", ["127.0.0.1:8420", "localhost:8420", "LOCALHOST:9", "[::1]:8420", "127.0.0.9", "127.0.0.1"])
def test_this_machine_is_answered_by_any_of_its_own_names(root: Path, host: str):
    # Another port is what a tunnel looks like: ssh -L 9000:localhost:8420.
    assert client(root).get("/api/runs", headers={"Host": host}).status_code == 200


FOREIGN = [
    "evil.example", "evil.example:8420", "127.0.0.1.evil.example", "localhost.evil.example:8420", "10.0.0.5:8420", "", "[::1",
    "0.0.0.0", "127.0.0.1@evil.example", "[::ffff:10.0.0.5]:8420",
]  # fmt: skip


@pytest.mark.parametrize("host", FOREIGN)
def test_a_foreign_host_is_refused_whatever_is_asked(root: Path, host: str):
    for path in ("/", "/api/runs", "/page/css/none.css", "/nothing"):
        answer = client(root).get(path, headers={"Host": host})
        assert answer.status_code == 421 and "error" in answer.json()


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://localhost:8420", "http://127.0.0.1:9999", "file://", "http://127.0.0.1:8420.evil"],
)
def test_a_foreign_origin_is_refused(root: Path, origin: str):
    for method in ("get", "post"):
        answer = getattr(client(root, allow_control=True), method)("/api/runs", headers={"Origin": origin})
        assert answer.status_code == 403, origin
    assert client(root).get("/api/runs", headers={"Origin": ADDRESS}).status_code == 200


@pytest.mark.parametrize(("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)])
def test_a_browser_that_says_another_page_asks_is_refused(root: Path, site: str, status: int):
    assert client(root).get("/api/runs", headers={"Sec-Fetch-Site": site}).status_code == status
    assert client(root).get("/", headers={"Sec-Fetch-Site": site}).status_code == 200, "a link from elsewhere may open the page"


def test_two_hosts_in_one_request_are_refused(root: Path):
    headers = [("Host", "127.0.0.1:8420"), ("Host", "evil.example")]
    assert client(root).get("/api/runs", headers=headers).status_code == 400


def test_listening_elsewhere_needs_a_token():
    for host in ("0.0.0.0", "::", "10.0.0.5", "example.org", ""):
        with pytest.raises(UserError, match="there is no key"):
            check_reach(host, "", "UPSLOPE_BOARD_TOKEN")
        check_reach(host, "key", "UPSLOPE_BOARD_TOKEN")
    check_reach("::1", "", "UPSLOPE_BOARD_TOKEN")


def test_with_a_token_nothing_is_answered_without_it(root: Path):
    browser = client(root, token="sesame", port=8420)
    for path in ("/", "/api/runs", "/api/curves?run=a&key=reward", "/page/index.html", "/nothing", "/?token=wrong", "/?token="):
        assert browser.get(path).status_code == 401
    assert browser.post("/api/start").status_code == 401
    for key in ("wrong", "", "sesame ", "sesam\u00e9"):
        headers = {"Authorization": f"Bearer {key}".encode("latin-1")}
        assert browser.get("/api/runs", headers=headers).status_code == (200 if key == "sesame " else 401)
    assert browser.get("/api/runs", headers={"Authorization": "Bearer sesame"}).status_code == 200
    assert browser.get("/api/runs?token=sesame").status_code == 401, "only the page's own address takes it"
    assert browser.get("/api/runs", headers={"Authorization": "Bearer sesame", "Host": "evil.example"}).status_code == 421


def test_the_address_with_the_token_leaves_a_cookie_that_is_not_the_token(root: Path):
    browser = client(root, token="sesame", port=8420)
    entry = browser.get("/?token=sesame", follow_redirects=False)
    cookie = entry.headers["set-cookie"]
    assert entry.status_code == 303 and entry.headers["location"] == "/"
    assert (
        "HttpOnly" in cookie and "SameSite=Strict" in cookie and "sesame" not in cookie and cookie.startswith("upslope_board_8420=")
    )
    assert browser.get("/api/runs").status_code == 200
    again = browser.get("/?token=sesame", follow_redirects=False)
    assert again.status_code == 303 and "set-cookie" not in again.headers, "the token leaves the address bar"
    browser.cookies.clear()
    for value in ("wrong", "sesame", "", '"'):
        assert browser.get("/api/runs", headers={"Cookie": f"upslope_board_8420={value}"}).status_code == 401
    other = client(root, token="another", port=8420)
    assert other.get("/api/runs", headers={"Cookie": cookie.partition(";")[0]}).status_code == 401


def test_listening_everywhere_takes_addresses_and_its_own_name_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("socket.gethostname", lambda: "Workstation")
    door = Door("0.0.0.0", 8420, "k")
    allowed = {"authorization": "Bearer k"}
    for host, fine in (("10.0.0.5:8420", True), ("workstation:8420", True), ("localhost", True), ("evil.example", False)):
        assert (door.refusal("GET", "/api/runs", {"host": host, **allowed}) is None) == fine
    named = Door("Board.Example", 8420, "k")
    assert named.refusal("GET", "/", {"host": "board.example:8420", **allowed}) is None
    assert named.refusal("GET", "/", {"host": "10.0.0.5:8420", **allowed}) is not None


def test_every_answer_carries_the_headers(root: Path, monkeypatch: pytest.MonkeyPatch):
    browser = client(root)

    def broken(*_: object) -> None:
        raise RuntimeError("secret words")

    monkeypatch.setattr("upslope.board.app.plan_view.settings_view", broken)
    failed = browser.get("/api/settings?run=a")
    assert failed.status_code == 500 and "secret" not in failed.text and "RuntimeError" in failed.json()["error"]
    answers = [failed, *(browser.get(path) for path in ("/", "/api/runs", "/api/rollout?run=a&step=1", "/nothing", "/api/curves"))]
    answers += [browser.get("/", headers={"Host": "evil.example"}), browser.post("/api/start"), browser.delete("/api/runs")]
    for answer in answers:
        assert answer.headers["content-security-policy"] == POLICY
        for name, value in HEADERS.items():
            assert answer.headers.get_list(name) == [value]
        assert answer.headers["cache-control"] == (
            "no-cache" if answer.url.path == "/" and answer.status_code == 200 else "no-store"
        )
        assert "access-control-allow-origin" not in answer.headers and "server" not in answer.headers


PATHS = [
    "/page/../app.py", "/page/%2e%2e/app.py", "/page/..%2fapp.py", "/page/%2e%2e%2fapp.py", "/page//etc/passwd", "/page/%00",
    "/page/", "/page/js/../../app.py", "/../../../etc/passwd", "/page/..\\app.py", "/etc/passwd", "/page/js",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leads_out_of_the_page(root: Path, path: str):
    answer = client(root).get(path)
    assert answer.status_code == 404 and "def " not in answer.text and "root:" not in answer.text


def test_an_id_that_was_not_found_by_looking_is_gone(root: Path):
    write_run(root.parent / "outside")
    browser = client(root)
    for run in ("../outside", "..", ".", "", "/", "a/..", "a/../a", "../runs/a", "a/", "/a", "%2e%2e/outside", "a\x00", "A"):
        for what in ("keys", "rollouts", "settings", "method", "episodes", "curves", "bands", "rollout", "episode", "frames"):
            answer = browser.get(f"/api/{what}", params={"run": run, "key": "reward", "step": 1})
            assert answer.status_code == 404 and "gone" in answer.json()["error"], (what, run)


def test_links_in_a_run_lead_nowhere(root: Path):
    outside = write_run(root.parent / "outside")
    secret = write_rollout(outside, 2, {"secret": 1})
    run = root / "a"
    (run / "rollouts" / "step-000002.json.gz").symlink_to(secret)
    (run / "episodes").symlink_to(outside)
    (outside / "step-000003.json").write_text('{"secret": 1}')
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to(outside / "metrics.jsonl")
    (run / "rollouts.jsonl").symlink_to(outside / "run.toml")
    browser = client(root)
    assert browser.get("/api/rollouts?run=a").json() == {"steps": [1], "jumps": []}
    assert browser.get("/api/rollout?run=a&step=2").status_code == 404
    assert browser.get("/api/episode?run=a&step=3").status_code == 404 and browser.get("/api/episodes?run=a").json()["steps"] == []
    assert browser.get("/api/keys?run=a").json()["step"] == []
    (run / "run.toml").unlink()
    (run / "run.toml").symlink_to(outside / "run.toml")
    assert client(root).get("/api/runs").json()["runs"] == []


def test_a_pipe_does_not_keep_the_board_waiting(root: Path):
    (root / "a" / "metrics.jsonl").unlink()
    os.mkfifo(root / "a" / "metrics.jsonl")
    os.mkfifo(root / "a" / "rollouts" / "step-000005.json.gz")
    browser = client(root)
    assert browser.get("/api/keys?run=a").json()["step"] == []
    assert browser.get("/api/rollout?run=a&step=5").status_code == 404
    assert browser.get("/api/rollouts?run=a").json()["steps"] == [1]


def test_what_hosts_and_keys_are():
    assert host_of("[::1]:80") == "::1" and host_of("[::1") == "" and host_of("a:b:c") in ("a", "")
    assert is_loopback("127.8.8.8") and is_loopback("::1") and not is_loopback("localhost.evil") and not is_loopback("")
    assert same_key("a", "a") and not same_key("a", "b") and not same_key("é", "e") and not same_key("\udc80", "x")
