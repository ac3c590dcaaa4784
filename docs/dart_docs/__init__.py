"""Pages of the reference that are generated from the code: `PAGES` in `dart_docs.pages` names them all."""
