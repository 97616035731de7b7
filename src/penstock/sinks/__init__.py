"""Where rows of a flow go that no table of the pipeline takes."""
