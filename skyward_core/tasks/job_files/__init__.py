"""Job files: YAML documents with the resources, the setup commands and the run commands of a job."""
