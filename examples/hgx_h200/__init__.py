"""Parts of the builder of the bundled example host; see build_hgx_h200.py."""
