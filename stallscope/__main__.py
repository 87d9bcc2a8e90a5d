"""`python -m stallscope` is the same as the `stallscope` command."""

from .cli import main

if __name__ == "__main__":
    main()
