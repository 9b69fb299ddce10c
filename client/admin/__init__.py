"""The admin client: describes and changes the cluster."""
