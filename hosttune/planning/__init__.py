"""(Host, Intent) → Plan: where guests go and which settings they want. Pure: touches no machine."""
