"""Support for Databricks projects: bundles, notebooks, `dbutils`, magics and stand-ins."""
