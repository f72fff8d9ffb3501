"""What client, agent and worker say to each other. Standard library only."""
