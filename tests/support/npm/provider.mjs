// An OpenID Connect provider on loopback for tests: node provider.mjs MODULES PORT CLIENT REDIRECT.
// Its login page takes any of the names below without a password.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, port, client, redirect] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const { Provider } = await import(pathToFileURL(require.resolve("oidc-provider")));

const people = {
  "sub-olga": { name: "Olga O.", groups: ["chorale-operators", "staff"] },
  "sub-vera": { name: "Vera V.", groups: "chorale-viewers" },
  "sub-nobody": { name: "Nobody", groups: ["staff"] },
};
const issuer = `http://127.0.0.1:${port}`;
const provider = new Provider(issuer, {
  clients: [{
    client_id: client, redirect_uris: [redirect], token_endpoint_auth_method: "none",
    grant_types: ["authorization_code"], response_types: ["code"],
  }],
  pkce: { required: () => true },
  claims: { openid: ["sub"], profile: ["name", "groups"] },
  conformIdTokenClaims: false,
  cookies: { keys: ["of-a-test"] },
  findAccount: (_ctx, sub) => people[sub] && { accountId: sub, claims: () => ({ sub, ...people[sub] }) },
});
provider.listen(Number(port), "127.0.0.1", () => console.log(`{"event": "provider serves"}`));
