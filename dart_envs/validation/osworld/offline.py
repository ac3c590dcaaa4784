"""Which of OSWorld's tasks need no network.

Role: `OFFLINE_TASK_IDS`, ids by domain. Rule: found by reading setup, evaluator and instruction of all 369: nothing is downloaded, no web
site is visited or asked. Non-goals: the tasks themselves, which are in the user's own copy of OSWorld.
"""

from __future__ import annotations

from collections.abc import Mapping

OFFLINE_TASK_IDS: Mapping[str, tuple[str, ...]] = {
    "chrome": (
        "030eeff7-b492-4218-b312-701ec99ee0cc",
        "12086550-11c0-466b-b367-1d9e75b3910e",
        "2ad9387a-65d8-4e33-ad5b-7580065a27ca",
        "2ae9ba84-3a0d-4d4c-8338-3a1478dc5fe3",
        "3299584d-8f11-4457-bf4c-ce98f7600250",
        "3720f614-37fd-4d04-8a6b-76f54f8c222d",
        "480bcfea-d68f-4aaa-a0a9-2589ef319381",
        "93eabf48-6a27-4cb6-b963-7d5fe1e0d3a9",
        "9656a811-9b5b-4ddf-99c7-5117bcef0626",
        "99146c54-4f37-4ab8-9327-5f3291665e1e",
        "ae78f875-5b98-4907-bbb5-9c737fc68c03",
        "af630914-714e-4a24-a7bb-f9af687d3b91",
        "bb5e4c0d-f964-439c-97b6-bdb9747de3f4",
    ),
    "gimp": (
        "5ca86c6f-f317-49d8-b6a7-b527541caae8",
        "7767eef2-56a3-4cea-8c9f-48c070c7d65b",
        "7b7617bd-57cc-468e-9c91-40c4ec2bcb3d",
        "d52d6308-ec58-42b7-a2c9-de80e4837b2b",
        "e19bd559-633b-4b02-940f-d946248f088e",
        "fbb548ca-c2a6-4601-9204-e39a2efc507b",
    ),
    "libreoffice_impress": (
        "2cd43775-7085-45d8-89fa-9e35c0a915cf",
        "ef9d12bd-bcee-4ba0-a40e-918400f43ddf",
    ),
    "multi_apps": (
        "2373b66a-092d-44cb-bfd7-82e86e7a3b4d",
        "6d72aad6-187a-4392-a4c4-ed87269c51cf",
        "937087b6-f668-4ba6-9110-60682ee33441",
    ),
    "os": (
        "13584542-872b-42d8-b299-866967b5c3ef",
        "28cc3b7e-b194-4bc9-8353-d04c0f4d56d2",
        "3ce045a0-877b-42aa-8d2c-b4a863336ab8",
        "4783cc41-c03c-4e1b-89b4-50658f642bd5",
        "a462a795-fdc7-4b23-b689-e8b6df786b78",
        "a4d98375-215b-4a4d-aee9-3d4370fccc41",
        "b3d4a89c-53f2-4d6b-8b6a-541fb5d205fa",
        "b6781586-6346-41cd-935a-a6b1487918fc",
        "bedcedc4-4d72-425e-ad62-21960b11fe0d",
        "c288e301-e626-4b98-a1ab-159dcb162af5",
        "e0df059f-28a6-4169-924f-b9623e7184cc",
        "ec4e3f68-9ea4-4c18-a5c9-69f89d1178b3",
        "f9be0997-4b7c-45c5-b05c-4612b44a6118",
        "fe41f596-a71b-4c2f-9b2f-9dcd40b568c3",
    ),
    "vlc": (
        "215dfd39-f493-4bc3-a027-8a97d72c61bf",
        "5ac2891a-eacd-4954-b339-98abba077adb",
        "7882ed6e-bece-4bf0-bada-c32dc1ddae72",
        "8ba5ae7a-5ae5-4eab-9fcc-5dd4fe3abf89",
        "9195653c-f4aa-453d-aa95-787f6ccfaae9",
        "a5bbbcd5-b398-4c91-83d4-55e1e31bbb81",
        "cb130f0d-d36f-4302-9838-b3baf46139b6",
        "d06f0d4d-2cd5-4ede-8de9-598629438c6e",
        "f3977615-2b45-4ac5-8bba-80c17dbe2a37",
    ),
    "vs_code": (
        "276cc624-87ea-4f08-ab93-f770e3790175",
        "57242fad-77ca-454f-b71b-f187181a9f23",
        "7c4cc09e-7a92-40dd-8338-b2286535c4ed",
        "930fdb3b-11a8-46fe-9bac-577332e2640e",
        "9439a27b-18ae-42d8-9778-5f68f891805e",
        "971cbb5b-3cbf-4ff7-9e24-b5c84fcebfa6",
        "982d12a5-beab-424f-8d38-d2a48429e511",
        "9d425400-e9b2-4424-9a4b-d4c7abac4140",
        "dcbe20e8-647f-4f1d-8696-f1c5bbb570e3",
        "e2b5e914-ffe1-44d2-8e92-58f8c5d92bb2",
        "ea98c5d7-3cf9-4f9b-8ad3-366b58e0fcae",
    ),
}
