"""The demo: a generator of orders, the pipeline that reads them, and the account of every row."""
