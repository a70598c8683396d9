"""The control process: it starts the workers, feeds them rules and health, and adds up what they count."""
