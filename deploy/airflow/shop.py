"""Airflow: check a pipeline, then run it. Penstock is installed in a separate environment."""

import os
from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

PENSTOCK = os.environ.get("PENSTOCK", "/opt/penstock/bin/penstock")
PROJECT = os.environ.get("PENSTOCK_PROJECT", "/srv/penstock/shop")

with DAG(
    "shop",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,  # one update at a time
) as dag:
    check = BashOperator(task_id="check", bash_command=f"{PENSTOCK} dry-run {PROJECT}")
    update = BashOperator(
        task_id="update",
        bash_command=f"{PENSTOCK} run {PROJECT} --quiet",
        # A requested stop is not a failure: downstream tasks are skipped.
        skip_on_exit_code=130,
        retries=2,
        retry_delay=timedelta(minutes=5),
        # Airflow stops a task with SIGTERM: the update stops gracefully.
        execution_timeout=timedelta(hours=2),
    )
    check >> update
