"""LibreChat's code interpreter API: what an unmodified `@librechat/agents` client asks for."""
