"""Protocol between client, agent and worker: frames, their schemas, file names on nodes. Uses only the standard
library."""
