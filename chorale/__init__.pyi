from client.federation import AsyncFederation as AsyncFederation
from client.federation import Federation as Federation
from client.notebook import simulate as simulate
from crypto.errors import ChoraleError as ChoraleError
