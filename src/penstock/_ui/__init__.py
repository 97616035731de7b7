"""The dashboard: what was observed, over HTTP. It only reads event logs; nothing here acts."""
