"""The `chorale` command. It alone imports both coordinator and silo_agent, each only where it runs it."""
