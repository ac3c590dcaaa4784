"""The look asked for is an automatic style of styles.xml, where LibreOffice keeps those of headers and footers and does not look for the
content's: it shows the document as before; the verdict looks for styles in both parts."""

from __future__ import annotations


def attack(task: dict) -> None:
    import re, zipfile, os, io, sys

    ev = task["evaluator"]
    path, rules = ev["result"]["path"], ev["expected"]["rules"]
    with zipfile.ZipFile(path) as z:
        parts = {i.filename: z.read(i) for i in z.infolist()}
    content, styles = parts["content.xml"].decode(), parts.get("styles.xml", b"").decode()
    print(content[:3000], file=sys.stderr)
    ns = (
        'xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" xmlns:style="urn:oasis:names:tc:opendocument:xmlns:style:1.0" '
        'xmlns:fo="urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0" xmlns:number="urn:oasis:names:tc:opendocument:xmlns:datastyle:1.0" '
        'xmlns:presentation="urn:oasis:names:tc:opendocument:xmlns:presentation:1.0"'
    )
    made = ""

    def refer(content, pattern, name, attribute):
        def one(m):
            tag = re.sub(rf' {attribute}="[^"]*"', "", m[0])
            return re.sub(r"^(<[\w:-]+)", rf'\1 {attribute}="{name}"', tag)

        return re.sub(pattern, one, content, count=1)

    if "paragraphs" in rules:
        content = content.replace("<text:p>", '<text:p text:style-name="Standard">')
        for n, rule in enumerate(rules["paragraphs"]):
            text = rule["text"]
            props = parent = ""
            if rule.get("looks"):
                look = {
                    "bold": 'fo:font-weight="bold"',
                    "italic": 'fo:font-style="italic"',
                    "underline": 'style:text-underline-style="solid"',
                }
                props = "<style:text-properties " + " ".join(look[l] for l in rule["looks"]) + "/>"
            if rule.get("align"):
                props = f'<style:paragraph-properties fo:text-align="{rule["align"]}"/>'
            if rule.get("page_break"):
                props = '<style:paragraph-properties fo:break-before="page"/>'
            if rule.get("style", "Standard") != "Standard":
                parent = f' style:parent-style-name="{rule["style"].replace(" ", "_20_")}"'
            if props or parent:
                made += f'<style:style style:name="Zz{n}" style:family="paragraph"{parent or " style:parent-style-name=" + chr(34) + "Standard" + chr(34)}>{props}</style:style>'
                content = refer(content, r"<text:[ph][^>]*>(?=" + re.escape(text) + ")", f"Zz{n}", "text:style-name")
    elif "cells" in rules:
        percent = any("number" in r for r in rules["cells"].values())
        if percent:
            made += '<number:percentage-style style:name="ZzN"><number:number number:decimal-places="2" number:min-integer-digits="1"/><number:text>%</number:text></number:percentage-style>'
            made += '<style:style style:name="Zz" style:family="table-cell" style:parent-style-name="Default" style:data-style-name="ZzN"/>'
            for row in rules["rows"][1:]:
                content = refer(
                    content, rf'<table:table-cell[^>]*office:value="{row[1]}"[^>]*>', "Zz", "table:style-name"
                )
        else:
            look = rules["cells"]["A1"]["looks"]
            names = {
                "bold": 'fo:font-weight="bold"',
                "italic": 'fo:font-style="italic"',
                "underline": 'style:text-underline-style="solid"',
            }
            made += (
                '<style:style style:name="Zz" style:family="table-cell" style:parent-style-name="Default"><style:text-properties '
                + " ".join(names[l] for l in look)
                + "/></style:style>"
            )
            for word in rules["rows"][0]:
                content = refer(
                    content, r"<table:table-cell[^>]*>(?=<text:p[^>]*>" + word + "<)", "Zz", "table:style-name"
                )
    else:
        index = next(i for i, s in enumerate(rules["slides"]) if s["hidden"])
        made += '<style:style style:name="Zz" style:family="drawing-page"><style:drawing-page-properties presentation:visibility="hidden"/></style:style>'
        pages = list(re.finditer(r"<draw:page [^>]*>", content))
        m = pages[index]
        tag = re.sub(r' draw:style-name="[^"]*"', "", m[0]).replace(
            "<draw:page ", '<draw:page draw:style-name="Zz" ', 1
        )
        content = content[: m.start()] + tag + content[m.end() :]
    print(styles[:800], file=sys.stderr)
    if not styles:
        styles = f'<?xml version="1.0" encoding="UTF-8"?><office:document-styles {ns} office:version="1.3"><office:styles/><office:automatic-styles>{made}</office:automatic-styles><office:master-styles/></office:document-styles>'
        if "META-INF/manifest.xml" in parts:
            parts["META-INF/manifest.xml"] = (
                parts["META-INF/manifest.xml"]
                .decode()
                .replace(
                    "</manifest:manifest>",
                    '<manifest:file-entry manifest:full-path="styles.xml" manifest:media-type="text/xml"/></manifest:manifest>',
                )
                .encode()
            )
    elif "<office:automatic-styles/>" in styles:
        styles = styles.replace(
            "<office:automatic-styles/>", f"<office:automatic-styles {ns}>{made}</office:automatic-styles>"
        )
    elif "</office:automatic-styles>" in styles:
        styles = styles.replace("</office:automatic-styles>", made + "</office:automatic-styles>")
    else:
        styles = styles.replace(
            "</office:document-styles>",
            f"<office:automatic-styles {ns}>{made}</office:automatic-styles></office:document-styles>",
        )
    parts["content.xml"], parts["styles.xml"] = content.encode(), styles.encode()
    with zipfile.ZipFile(path, "w") as z:
        for name, data in parts.items():
            z.writestr(name, data)
