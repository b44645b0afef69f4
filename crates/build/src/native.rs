//! The way of their own that unary calls have, in what tonic-prost-build has generated.

use std::collections::BTreeMap;

use prost_build::{Method, Service, ServiceGenerator};
use quote::{ToTokens as _, format_ident, quote};
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Arm, FnArg, GenericArgument, ImplItem, ImplItemFn, Item, ItemImpl, ItemMod, Lit, Pat, PatLit,
    PathArguments, TraitItem, parse_quote,
};

/// Generates services by another generator, and changes what that has made.
pub(crate) struct Generator(pub(crate) Box<dyn ServiceGenerator>);

impl ServiceGenerator for Generator {
    fn generate(&mut self, service: Service, buf: &mut String) {
        let mut text = String::new();
        let described = Described::new(&service);
        self.0.generate(service, &mut text);
        let mut file = syn::parse_file(&text).expect("tonic-prost-build generates Rust");
        let mut blocking = None;
        for item in &mut file.items {
            let Item::Mod(module) = item else { continue };
            let name = module.ident.to_string();
            if let Some(name) = name.strip_suffix("_client") {
                described.change_client(module);
                if cfg!(feature = "blocking") {
                    blocking = Some(described.blocking_client(name, module));
                }
            } else if name.ends_with("_server") {
                described.change_server(module);
            }
        }
        file.items.extend(blocking.map(Item::from));
        buf.push_str(&prettyplease::unparse(&file));
    }

    fn finalize(&mut self, buf: &mut String) {
        self.0.finalize(buf);
    }

    fn finalize_package(&mut self, package: &str, buf: &mut String) {
        self.0.finalize_package(package, buf);
    }
}

/// A service as its descriptor has it.
struct Described {
    /// Its trait, and the beginning of the names of its types.
    ident: String,
    /// With its package, as in paths.
    name: String,
    /// Without streams.
    unary: Vec<Method>,
}

impl Described {
    fn new(service: &Service) -> Self {
        let Service { name, proto_name, package, .. } = service;
        let dot = if package.is_empty() { "" } else { "." };
        let unary = service.methods.iter();
        let unary = unary.filter(|method| !method.client_streaming && !method.server_streaming);
        Self {
            ident: name.clone(),
            name: format!("{package}{dot}{proto_name}"),
            unary: unary.cloned().collect(),
        }
    }

    fn path(&self, method: &Method) -> String {
        format!("/{}/{}", self.name, method.proto_name)
    }

    fn change_client(&self, module: &mut ItemMod) {
        visit_mut::visit_item_mod_mut(&mut Clients, module);
        for function in functions(module, |_| true) {
            let Some(method) = self.unary.iter().find(|m| function.sig.ident == ident_of(m)) else {
                continue;
            };
            let (service, name, path) = (&self.name, &method.proto_name, self.path(method));
            function.block = parse_quote!({
                static METHOD: partywall::stubs::Method =
                    partywall::stubs::Method::new(#service, #name, #path);
                let mut call = partywall::stubs::Unary::new(&METHOD, request.into_request());
                self.inner.call(&mut call).await?;
                Ok(call.response())
            });
        }
    }

    /// A client for threads without a runtime: the unary methods of the changed one.
    fn blocking_client(&self, name: &str, module: &mut ItemMod) -> ItemMod {
        let (attributes, module_attributes) = (client_attributes(module), module.attrs.clone());
        let calls = functions(module, |_| true).filter_map(|function| {
            let method = self.unary.iter().find(|m| function.sig.ident == ident_of(m))?;
            let (service, name, path) = (&self.name, &method.proto_name, self.path(method));
            let mut function = function.clone();
            function.sig.asyncness = None;
            function.block = parse_quote!({
                static METHOD: partywall::stubs::Method =
                    partywall::stubs::Method::new(#service, #name, #path);
                self.inner.call(&METHOD, request.into_request())
            });
            Some(function)
        });
        let calls: Vec<ImplItemFn> = calls.collect();
        let client = format_ident!("{}Client", self.ident);
        let name = format_ident!("{name}_blocking");
        // A method of that name takes precedence.
        let into_inner = calls.iter().all(|call| call.sig.ident != "into_inner").then(|| {
            quote! {
                /// The channel.
                pub fn into_inner(self) -> partywall::blocking::Channel {
                    self.inner.into_inner()
                }
            }
        });
        let is_inner = |a: &&syn::Attribute| matches!(a.style, syn::AttrStyle::Inner(_));
        let (inner, outer): (Vec<_>, Vec<_>) = module_attributes.iter().partition(is_inner);
        let outer = outer.into_iter().filter(|attribute| !attribute.path().is_ident("doc"));
        parse_quote! {
            /// Generated client implementations for threads without a runtime.
            #(#outer)*
            pub mod #name {
                #(#inner)*
                #(#attributes)*
                #[derive(Debug)]
                pub struct #client {
                    inner: partywall::stubs::Blocking,
                }
                impl #client {
                    pub fn new(channel: partywall::blocking::Channel) -> Self {
                        Self { inner: partywall::stubs::Blocking::new(channel) }
                    }
                    #into_inner
                    /// Limits the maximum size of a decoded message.
                    ///
                    /// Default: `4MB`
                    #[must_use]
                    pub fn max_decoding_message_size(mut self, limit: usize) -> Self {
                        self.inner = self.inner.max_decoding_message_size(limit);
                        self
                    }
                    /// Limits the maximum size of an encoded message.
                    ///
                    /// Default: `usize::MAX`
                    #[must_use]
                    pub fn max_encoding_message_size(mut self, limit: usize) -> Self {
                        self.inner = self.inner.max_encoding_message_size(limit);
                        self
                    }
                    #(#calls)*
                }
            }
        }
    }

    fn change_server(&self, module: &mut ItemMod) {
        if self.unary.is_empty() {
            return;
        }
        let server = format_ident!("{}Server", self.ident);
        let is_service = |implementation: &ItemImpl| {
            let name = implementation.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
            name.is_some_and(|segment| segment.ident == "Service")
        };
        let mut requests = BTreeMap::new();
        for function in functions(module, is_service) {
            if function.sig.ident == "call" {
                let mut arms = Arms { described: self, requests: BTreeMap::new() };
                arms.visit_block_mut(&mut function.block);
                requests = arms.requests;
                function.block.stmts.insert(0, parse_quote!(partywall::stubs::offer(&req, self);));
            }
        }
        let service = format_ident!("{}", self.ident);
        let by_arc = takes_arc(module, &self.ident);
        let (number, methods) = (self.unary.len(), self.unary.iter().enumerate());
        let methods = methods.map(|(number, method)| {
            let (path, request) = (self.path(method), &requests[&number]);
            quote!(partywall::stubs::Served::new::<#request>(#path))
        });
        let arms = self.unary.iter().enumerate().map(|(number, method)| {
            let ident = ident_of(method);
            let own = if by_arc { quote!(inner) } else { quote!(&inner) };
            quote! {
                #number => partywall::stubs::begin(async move {
                    <T as #service>::#ident(#own, request.decode()?).await
                })
            }
        });
        let table: ItemImpl = parse_quote! {
            impl<T: #service> partywall::stubs::Generated for #server<T> {
                fn methods(&self) -> &'static [partywall::stubs::Served] {
                    static METHODS: [partywall::stubs::Served; #number] = [#(#methods),*];
                    &METHODS
                }
                fn settings(&self) -> partywall::stubs::Settings {
                    partywall::stubs::Settings {
                        decoded: self.max_decoding_message_size,
                        encoded: self.max_encoding_message_size,
                    }
                }
                fn begin(
                    &self,
                    method: usize,
                    request: partywall::stubs::Incoming,
                ) -> partywall::stubs::Begun {
                    let inner = Arc::clone(&self.inner);
                    match method {
                        #(#arms,)*
                        _ => std::unreachable!("a number without a path"),
                    }
                }
            }
        };
        if let Some((_, items)) = &mut module.content {
            items.push(table.into());
        }
    }
}

/// Puts our ordinary way in the place of tonic's, in the arms of a service's unary methods.
struct Arms<'a> {
    described: &'a Described,
    /// The types of requests, as tonic's arms have them.
    requests: BTreeMap<usize, syn::Type>,
}

impl VisitMut for Arms<'_> {
    fn visit_arm_mut(&mut self, arm: &mut Arm) {
        let Pat::Lit(PatLit { lit: Lit::Str(text), .. }) = &arm.pat else { return };
        let path = text.value();
        let mut methods = self.described.unary.iter();
        let number = methods.position(|method| self.described.path(method) == path);
        if let Some(number) = number {
            let mut request = Request(None);
            request.visit_expr(&arm.body);
            self.requests.insert(number, request.0.expect("tonic has a type for each method"));
            arm.body = parse_quote!({
                let encodings =
                    [self.accept_compression_encodings, self.send_compression_encodings];
                partywall::stubs::ordinary(self.clone(), #number, encodings, req)
            });
        }
    }
}

/// What a type is a `tonic::server::UnaryService` of.
struct Request(Option<syn::Type>);

impl<'ast> Visit<'ast> for Request {
    fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
        if segment.ident == "UnaryService"
            && let PathArguments::AngleBracketed(arguments) = &segment.arguments
            && let Some(GenericArgument::Type(request)) = arguments.args.first()
        {
            self.0 = Some(request.clone());
        }
        visit::visit_path_segment(self, segment);
    }
}

/// The name of a method as Rust has it, which may be a keyword.
fn ident_of(method: &Method) -> syn::Ident {
    match method.name.strip_prefix("r#") {
        Some(name) => syn::Ident::new_raw(name, proc_macro2::Span::call_site()),
        None => format_ident!("{}", method.name),
    }
}

/// The functions of those implementations.
fn functions(
    module: &mut ItemMod,
    wanted: impl Fn(&ItemImpl) -> bool,
) -> impl Iterator<Item = &mut ImplItemFn> {
    let items = module.content.iter_mut().flat_map(|(_, items)| items);
    let implementations = items.filter_map(move |item| match item {
        Item::Impl(implementation) if wanted(implementation) => Some(implementation),
        _ => None,
    });
    implementations.flat_map(|implementation| &mut implementation.items).filter_map(|item| {
        match item {
            ImplItem::Fn(function) => Some(function),
            _ => None,
        }
    })
}

/// The attributes of a client's type but what it derives, which another type may not be able to.
fn client_attributes(module: &ItemMod) -> Vec<syn::Attribute> {
    let items = module.content.iter().flat_map(|(_, items)| items);
    let mut types = items.filter_map(|item| match item {
        Item::Struct(client) => Some(&client.attrs),
        _ => None,
    });
    let attributes = types.next().into_iter().flatten();
    attributes.filter(|attribute| !attribute.path().is_ident("derive")).cloned().collect()
}

/// Whether the methods of a service's trait take it as an `Arc`.
fn takes_arc(module: &ItemMod, service: &str) -> bool {
    let items = module.content.iter().flat_map(|(_, items)| items);
    items
        .filter_map(|item| match item {
            Item::Trait(described) if described.ident == service => Some(described),
            _ => None,
        })
        .flat_map(|described| &described.items)
        .any(|item| match item {
            TraitItem::Fn(function) => {
                matches!(function.sig.inputs.first(), Some(FnArg::Receiver(own)) if own.colon_token.is_some())
            }
            _ => false,
        })
}

/// Puts our client in the place of tonic's.
struct Clients;

impl VisitMut for Clients {
    fn visit_path_mut(&mut self, path: &mut syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let is_grpc =
            |names: &[String]| names.starts_with(&["tonic", "client", "Grpc"].map(String::from));
        if is_grpc(&names) {
            let rest = path.segments.iter().skip(3);
            let arguments = path.segments[2].arguments.to_token_stream();
            *path = parse_quote!(partywall::stubs::Grpc #arguments #(:: #rest)*);
        }
        visit_mut::visit_path_mut(self, path);
    }
}
