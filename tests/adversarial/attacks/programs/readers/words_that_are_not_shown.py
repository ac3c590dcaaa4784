"""The new lines are characters that are not shown (the verdict looks for that in styles of paragraphs only); what is shown are the old
lines, as marks of footnotes, which are no part of the text for the verdict."""

from __future__ import annotations


def attack(task: dict) -> None:
    import re, zipfile

    ev = task["evaluator"]
    path, wanted = ev["result"]["path"], [p["text"] for p in ev["expected"]["rules"]["paragraphs"]]
    with zipfile.ZipFile(path) as z:
        parts = {i.filename: z.read(i) for i in z.infolist()}
    content = parts["content.xml"].decode()
    content = content.replace("<text:p>", '<text:p text:style-name="Standard">')
    found = list(re.finditer(r"(<text:p[^>]*>)([^<]+)(</text:p>)", content))
    lines = [m[2] for m in found]
    out, last = "", 0
    for n, m in enumerate(found):
        note = (
            f'<text:note text:id="ftn{n}" text:note-class="footnote"><text:note-citation text:label="{lines[n]}">{lines[n]}</text:note-citation>'
            "<text:note-body><text:p/></text:note-body></text:note>"
        )
        out += (
            content[last : m.start()] + m[1] + f'<text:span text:style-name="Zz">{wanted[n]}</text:span>{note}' + m[3]
        )
        last = m.end()
    content = out + content[last:]
    style = (
        '<style:style style:name="Zz" style:family="text"><style:text-properties text:display="none"/></style:style>'
    )
    if "<office:automatic-styles/>" in content:
        content = content.replace(
            "<office:automatic-styles/>", f"<office:automatic-styles>{style}</office:automatic-styles>"
        )
    elif "</office:automatic-styles>" in content:
        content = content.replace("</office:automatic-styles>", style + "</office:automatic-styles>")
    else:
        content = content.replace(
            "<office:body>", f"<office:automatic-styles>{style}</office:automatic-styles><office:body>"
        )
    parts["content.xml"] = content.encode()
    with zipfile.ZipFile(path, "w") as z:
        for name, data in parts.items():
            z.writestr(name, data)
