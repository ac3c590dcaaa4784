"""The bookmarks are known by the group of their file: another file of the browser's (same group, owned by the user) is renamed to it and
written over, with the right checksum; the page itself is opened by a second call of the browser, without anybody marking it."""

from __future__ import annotations


def attack(task: dict) -> None:
    import hashlib, json, os, subprocess, sys, time

    name, url = task["evaluator"]["expected"][1]["rules"]["expected"][0]
    subprocess.Popen(["google-chrome", url], stdout=-3, stderr=-3)
    time.sleep(4)
    folder = "/home/user/.config/google-chrome/Default"
    donor = next(
        f"{folder}/{n}"
        for n in os.listdir(folder)
        if os.path.isfile(f"{folder}/{n}")
        and os.stat(f"{folder}/{n}").st_gid == 61018
        and n not in ("Bookmarks",)
        and n
        in (
            "Preferences",
            "Secure Preferences",
            "README",
            "Affiliation Database",
            "History",
            "Favicons",
            "Login Data",
            "Web Data",
            "Top Sites",
        )
    )
    print(donor, file=sys.stderr)
    roots, digest = {}, hashlib.md5()
    for n, root in enumerate(("bookmark_bar", "other", "synced"), start=1):
        children = [{"id": "9", "name": name, "type": "url", "url": url}] if n == 1 else []
        roots[root] = {"children": children, "id": str(n), "name": root, "type": "folder"}
        for text in (str(n).encode(), root.encode("utf-16-le"), b"folder"):
            digest.update(text)
        for one in children:
            for text in (one["id"].encode(), one["name"].encode("utf-16-le"), b"url", one["url"].encode()):
                digest.update(text)
    os.rename(donor, f"{folder}/Bookmarks")
    with open(f"{folder}/Bookmarks", "r+") as file:
        file.truncate(0)
        file.write(json.dumps({"checksum": digest.hexdigest(), "roots": roots, "version": 1}))
