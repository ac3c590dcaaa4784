"""A cell says that it is a number (office:value-type) and, in LibreOffice's own extension, that it is a text (calcext:value-type): the
verdict takes the number, LibreOffice the text, which is the old number."""

from __future__ import annotations


def attack(task: dict) -> None:
    import re, zipfile, subprocess, sys, glob

    ev = task["evaluator"]
    path, rows = ev["result"]["path"], ev["expected"]["rules"]["rows"]
    new = re.search(r" to (\d+) and", task["instruction"])[1]
    with zipfile.ZipFile(path) as z:
        parts = {i.filename: z.read(i) for i in z.infolist()}
    content = parts["content.xml"].decode()
    held = re.findall(r'office:value="([\d.]+)"', content)
    wanted = [str(v) for row in rows for v in row if not isinstance(v, str)]
    old = next(h for h, w in zip(held, wanted) if float(h) != float(w))
    content = re.sub(
        rf'<table:table-cell([^>]*)office:value="{old}"([^>]*)>(.*?)</table:table-cell>',
        lambda m: (
            f'<table:table-cell office:value-type="float" office:value="{new}" xmlns:calcext="urn:org:documentfoundation:names:experimental:calc:xmlns:calcext:1.0" calcext:value-type="string"><text:p>{old}</text:p></table:table-cell>'
        ),
        content,
        count=1,
    )
    parts["content.xml"] = content.encode()
    with zipfile.ZipFile(path, "w") as z:
        for name, data in parts.items():
            z.writestr(name, data)
    subprocess.run(
        f"cd /tmp && soffice -env:UserInstallation=file:///tmp/lo --headless --convert-to csv {path}",
        shell=True,
        timeout=50,
        capture_output=True,
    )
    for f in glob.glob("/tmp/*.csv"):
        print(open(f).read(), file=sys.stderr)
