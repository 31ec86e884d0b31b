"""The step of the action that comments: writes the answer below the pull request, or over its own earlier comment.

Where nothing changed and there is no comment yet, it writes none. A token that may not write (of a fork) is no failure: the job's
summary has the answer.
"""

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

MOST = 65_000  # signs of a comment; GitHub takes 65,536
PAGE = 100
OURS = ("OWNER", "MEMBER", "COLLABORATOR")  # others may write the mark too, and could edit what is put there


def main() -> None:
    event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    number = (event.get("pull_request") or event.get("issue") or {}).get("number")
    if not number:
        print("this event has no pull request: nothing is commented")
        return
    mark = f"<!-- commtax: {os.environ.get('COMMTAX_NAME') or 'commtax'} -->"
    text = Path(os.environ["COMMTAX_MARKDOWN"]).read_text(encoding="utf-8")
    body = f"{mark}\n{text if len(text) <= MOST else text[:MOST] + '…'}"
    comments = f"/repos/{os.environ['GITHUB_REPOSITORY']}/issues"
    try:
        earlier = own_comment(f"{comments}/{int(number)}/comments", mark)
        if earlier:
            call("PATCH", f"{comments}/comments/{earlier}", {"body": body})
            print(f"comment {earlier} is up to date")
        elif os.environ.get("COMMTAX_CHANGED") != "false":
            made = call("POST", f"{comments}/{int(number)}/comments", {"body": body})
            print(f"comment {made['id']} is written")
        else:
            print("nothing changed: nothing is commented")
    except urllib.error.HTTPError as error:
        if error.code not in (401, 403, 404):
            raise
        print(f"::warning::commtax: the token may not comment ({error.code}); the summary of this job has the answer")


def own_comment(path: str, mark: str) -> int | None:
    """The number of the comment that this step wrote before."""
    page = 1
    while rows := call("GET", f"{path}?per_page={PAGE}&page={page}"):
        for row in rows:
            trusted = row["user"]["type"] == "Bot" or row.get("author_association") in OURS
            if trusted and row["body"].startswith(mark):
                return int(row["id"])
        page += 1
        if len(rows) < PAGE:
            break
    return None


def call(method: str, path: str, sent: dict[str, str] | None = None) -> Any:
    """An answer of GitHub's API."""
    request = urllib.request.Request(
        os.environ.get("GITHUB_API_URL", "https://api.github.com") + path,
        data=None if sent is None else json.dumps(sent).encode(),
        method=method,
        headers={
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {os.environ['COMMTAX_TOKEN']}",
            "Content-Type": "application/json",
            "X-GitHub-Api-Version": "2022-11-28",
        },
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
