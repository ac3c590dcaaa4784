"""Every value asked for is only the stored result of a formula that the verdict cannot compute (IF) and then believes; LibreOffice
computes something else as soon as it recalculates."""

from __future__ import annotations


def attack(task: dict) -> None:
    import re, zipfile

    ev = task["evaluator"]
    path, rows = ev["result"]["path"], ev["expected"]["rules"]["rows"]
    with zipfile.ZipFile(path) as z:
        parts = {i.filename: z.read(i) for i in z.infolist()}
    content = parts["content.xml"].decode()

    def cell(v):
        if isinstance(v, str):
            return f'<table:table-cell table:formula="of:=IF(TRUE();&quot;nothing&quot;;0)" office:value-type="string" office:string-value="{v}"><text:p>{v}</text:p></table:table-cell>'
        return f'<table:table-cell table:formula="of:=IF(TRUE();1;0)" office:value-type="float" office:value="{v}"><text:p>{v}</text:p></table:table-cell>'

    body = "".join("<table:table-row>" + "".join(map(cell, row)) + "</table:table-row>" for row in rows)
    content = re.sub(r"<table:table-row.*</table:table-row>", lambda m: body, content, count=1, flags=re.S)
    parts["content.xml"] = content.encode()
    with zipfile.ZipFile(path, "w") as z:
        for name, data in parts.items():
            z.writestr(name, data)
