"""Benchmarks and data sets of grounding as their authors publish them, read into our samples and written from them.

    dataset         samples with their images, and how their authors average
    source          reading records and finding images, with errors that name the fix
    screenspot      ScreenSpot and ScreenSpot-v2
    screenspot_pro  ScreenSpot-Pro
    osworld_g       OSWorld-G
    os_atlas        OS-Atlas-data
    huggingface     Parquet files of Hugging Face's `datasets`
    formats         the formats by name; which one a folder has
    report          hit rates of answers, as JSON

Rule: nothing is downloaded; a reader says in one sentence what a folder lacks. Coordinates become pixels of the image as it is, whatever
its size was noted to be. Non-goals: asking a model (`dart_agent.grounding.evaluation`).
"""
